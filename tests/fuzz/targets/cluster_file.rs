//! libFuzzer's program of the target `cluster_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::cluster_file::run(data));
