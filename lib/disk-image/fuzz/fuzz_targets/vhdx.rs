//! Any bytes as a VHDX image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| disk_image_fuzz::read(disk_image::Format::Vhdx, data));
