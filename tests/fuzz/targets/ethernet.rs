//! libFuzzer's program of the target `ethernet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::ethernet::run(data));
