//! Turns the definitions in `proto/` into `$OUT_DIR/{csi.v1,pluginregistration,v1beta1,ferrovirt.pools}.rs` and
//! `$OUT_DIR/metadata/snapshotmetadata.rs`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    // The registration's server is hpp-csi's `http2.rs`.
    for (definition, server) in [
        ("proto/csi.proto", true),
        ("proto/registration.proto", false),
        ("proto/deviceplugin.proto", true),
        ("proto/pools.proto", true),
    ] {
        let definitions = protox::compile([definition], ["proto"])?;
        tonic_prost_build::configure().build_server(server).compile_fds(definitions)?;
    }
    // Its answers are CSI's. The file of CSI's types is written a second time, to another directory, without them.
    let folder = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("metadata");
    std::fs::create_dir_all(&folder)?;
    let definitions = protox::compile(["proto/snapshotmetadata.proto"], ["proto"])?;
    let builder = tonic_prost_build::configure().out_dir(folder).extern_path(".csi.v1", "crate");
    builder.compile_fds(definitions)?;
    Ok(())
}
