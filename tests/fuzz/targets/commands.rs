//! libFuzzer's program of the target `commands`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::commands::run(data));
