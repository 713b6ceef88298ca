//! The program from outside: command line and environment contract, on raw disks (formats have their own tests).
//!
//! - `place`: what the tests share.
//! - `command_line`, `archives`, `contract`, `interrupted`: the tests, by subject.

mod archives;
mod command_line;
mod contract;
mod interrupted;
mod place;
