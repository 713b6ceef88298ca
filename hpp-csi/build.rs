//! Turns `proto/csi.proto` into `$OUT_DIR/csi.v1.rs`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/csi.proto");
    let definitions = protox::compile(["proto/csi.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(definitions)?;
    Ok(())
}
