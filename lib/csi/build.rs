//! Turns the definitions in `proto/` into `$OUT_DIR/{csi.v1,pluginregistration,v1beta1}.rs`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    // The registration's server is hpp-csi's `http2.rs`.
    for (definition, server) in
        [("proto/csi.proto", true), ("proto/registration.proto", false), ("proto/deviceplugin.proto", true)]
    {
        let definitions = protox::compile([definition], ["proto"])?;
        tonic_prost_build::configure().build_server(server).compile_fds(definitions)?;
    }
    Ok(())
}
