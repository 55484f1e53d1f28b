//! Whole-system tests, one behaviour area a file.

mod failures;
mod interruptions;
mod ring;
mod tidy;
