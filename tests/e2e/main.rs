//! Whole-system tests, one behaviour area a file.

mod failures;
mod ring;
mod tidy;
