//! Misuse that can be checked is an error, under AddressSanitizer and the sanitizer of undefined
//! behaviour.

use crate::cluster::{file, Cluster};

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn mistakes_of_c_programs_are_errors() {
    let cluster = Cluster::new();
    let program = cluster.compile(&file("tests/programs/mistakes.c"));
    assert_eq!(cluster.start(&program, 0, &[]).finish(), "");
}
