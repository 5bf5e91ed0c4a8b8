//! libFuzzer's program of the target `udp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::udp::run(data));
