//! libFuzzer's program of the target `control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::control::run(data));
