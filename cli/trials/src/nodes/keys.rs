//! Keys for the device processes of two hosts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use qnic_config::plan::PrivateKey;

/// A key pair for each of two hosts.
#[derive(Debug)]
pub struct HostKeys {
    /// The files with the private keys.
    pub files: [PathBuf; 2],
    /// The public keys.
    pub public: [String; 2],
}

impl HostKeys {
    /// Makes them, with their files in `directory`.
    pub fn new(directory: &Path) -> Result<Self> {
        let files = [0, 1].map(|host| directory.join(format!("host{host}.key")));
        let mut public = [String::new(), String::new()];
        for (file, public) in files.iter().zip(&mut public) {
            let key = PrivateKey::generate().context("make a key")?;
            let made = key.write_new(file);
            made.with_context(|| file.display().to_string())?;
            *public = key.public().to_string();
        }
        Ok(HostKeys { files, public })
    }
}
