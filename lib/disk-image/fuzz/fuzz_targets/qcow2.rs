//! Any bytes as a qcow2 image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| disk_image_fuzz::read(disk_image::Format::Qcow2, data));
