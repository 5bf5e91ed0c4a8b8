//! libFuzzer's program of the target `frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::frames::run(data));
