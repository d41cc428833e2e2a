#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kruise_rs::fuzzing::user_object(data));
