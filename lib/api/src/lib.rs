//! Contracts between ferrovirt programs and with the outside: pure data and pure rules, no I/O, no async.
