/** A buffer breaks a rule of the format. */
export class DecodeError extends Error {
  /**
   * @param {string} rule the rule's id
   * @param {string} detail what was found
   * @param {number} [index] of the record
   */
  constructor(rule, detail = "", index = undefined) {
    super(`${rule}${index === undefined ? "" : ` (record ${index})`}: ${detail}`);
    this.name = "DecodeError";
    this.rule = rule;
    this.index = index;
  }
}

/** Throws unless a rule holds. */
export function check(holds, rule, detail, index) {
  if (!holds) throw new DecodeError(rule, typeof detail === "function" ? detail() : detail, index);
}
