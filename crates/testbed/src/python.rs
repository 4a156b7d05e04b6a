//! Python environments with pinned packages, in the user's cache. The folder's name contains a hash of the pinned
//! versions, so each environment is installed once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The folder with the package lists and the certification scripts.
pub fn certify_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("certify")
}

/// The path of a Python that has the packages in `requirements-<name>.txt`. Installs them if they are missing.
pub fn with_packages(name: &str) -> Result<PathBuf> {
    let requirements = certify_folder().join(format!("requirements-{name}.txt"));
    let pinned = std::fs::read_to_string(&requirements)?;
    let mut hasher = DefaultHasher::new();
    pinned.hash(&mut hasher);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let cache = cache.context("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = cache.join(format!("ip-address-controller/certify-{name}-{:016x}", hasher.finish()));
    let python = folder.join("bin/python");
    if !folder.join("complete").exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        run(Command::new(&python).args(pip).arg(&requirements))?;
        std::fs::write(folder.join("complete"), "")?;
    }
    Ok(python)
}

/// Runs a command and returns its standard output. Fails if the command fails.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed:\n{out}\n{err}");
    Ok(out.into_owned())
}
