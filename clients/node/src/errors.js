/** What a server found wrong, or why it could not be asked. */
export class UmdError extends Error {
  /**
   * @param {number} status see docs/service.md
   * @param {string} message
   * @param {string} [facts] a JSON object
   */
  constructor(status, message, facts = "") {
    super(message);
    this.name = "UmdError";
    this.status = status;
    this.facts = facts ? JSON.parse(facts) : {};
  }

  /** Returns the error that a server described. */
  static of({ status, message, facts }) {
    return new UmdError(status, message, facts);
  }
}
