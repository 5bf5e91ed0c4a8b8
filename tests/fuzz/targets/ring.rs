//! libFuzzer's program of the target `ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::ring::run(data));
