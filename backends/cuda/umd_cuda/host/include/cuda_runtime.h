#pragma once  // everything of it is in umd_host.hpp
