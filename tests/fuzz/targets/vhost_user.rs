//! libFuzzer's program of the target `vhost_user`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qnic_fuzz::vhost_user::run(data));
