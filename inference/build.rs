//! Tells the linker where libtorch lies, so that binaries and tests find it without LD_LIBRARY_PATH.
//! torch-sys publishes the folder to the build scripts of its direct dependents.

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    if let Ok(folder) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        // --disable-new-dtags makes it an RPATH, which libtorch's own libraries search too.
        println!("cargo:rustc-link-arg=-Wl,--disable-new-dtags,-rpath,{folder}");
    }
}
