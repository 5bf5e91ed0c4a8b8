//! libFuzzer's program of the target `verbs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::verbs::run(data));
