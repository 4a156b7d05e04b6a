//! Finds the servers that `just tools` built.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The path of a server, such as `kube-apiserver`. A binary in the folder `KUBEBUILDER_ASSETS` takes precedence.
pub fn binary(name: &str) -> Result<PathBuf> {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        let path = Path::new(&assets).join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let path = folder()?.join(name);
    ensure!(path.is_file(), "{name} is not built: run `just tools` first");
    Ok(path)
}

/// The path of a server that `just tools` does not build by default. None if it is not built.
pub fn binary_on_request(name: &str) -> Result<Option<PathBuf>> {
    let path = folder()?.join(name);
    Ok(path.is_file().then_some(path))
}

/// All files that a tool ships besides its binary, such as kwok's stages.
pub fn shared_files(tool: &str) -> Result<Vec<PathBuf>> {
    let folder = folder()?.join("../share").join(tool);
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("{tool} is not built: run `just tools` first"))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// The path of one file that a tool ships besides its binary.
pub fn shared_file(tool: &str, name: &str) -> Result<PathBuf> {
    let path = folder()?.join("../share").join(tool).join(name);
    ensure!(path.is_file(), "{tool} is not built: run `just tools` first");
    Ok(path)
}

/// The controller binary of release 0.1.0.
pub fn baseline() -> Result<PathBuf> {
    let path = printed_by("baseline")?;
    ensure!(path.is_file(), "release 0.1.0 is not built: run `tools/baseline` first");
    Ok(path)
}

fn folder() -> Result<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if let Some(folder) = FOLDER.get() {
        return Ok(folder);
    }
    let path = printed_by("build")?;
    Ok(FOLDER.get_or_init(|| path))
}

/// The path that a script in `tools/` prints with `--where`: there it puts what it builds.
fn printed_by(script: &str) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools").join(script);
    let output = Command::new(&path).arg("--where").output();
    let output = output.with_context(|| format!("running tools/{script} --where"))?;
    if !output.status.success() {
        bail!("tools/{script} --where failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
