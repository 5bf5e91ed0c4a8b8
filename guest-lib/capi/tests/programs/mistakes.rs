//! Misuse that can be checked is an error, under the sanitizers.

use crate::cluster::{Checker, Cluster};

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn mistakes_of_c_programs_are_errors() {
    Cluster::new().run("tests/programs/mistakes.c", Checker::Sanitizers);
}
