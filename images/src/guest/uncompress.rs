//! Files of the distribution without their compression.

use std::path::PathBuf;

use crate::cache::remove_file;
use crate::command::run;
use crate::error::Result;
use crate::root::Root;

/// The program that uncompresses files with this suffix.
pub(super) fn uncompressor(suffix: &str) -> Option<&'static str> {
    match suffix {
        ".xz" => Some("xz"),
        ".zst" => Some("zstd"),
        ".gz" => Some("gzip"),
        _ => None,
    }
}

/// Replaces `file` by what is compressed in it, without its suffix; returns where it is then. A
/// file without the suffix of a compression stays.
pub(super) fn uncompress(file: PathBuf, tools: &Root) -> Result<PathBuf> {
    let suffix = file.extension().unwrap_or_default().to_string_lossy();
    let Some(program) = uncompressor(&format!(".{suffix}")) else {
        return Ok(file);
    };
    let mut command = tools.command(&format!("usr/bin/{program}"), program);
    let what = format!("uncompress {}", file.display());
    run(&what, command.arg("-d").arg(&file))?;
    // Some of these programs leave it.
    remove_file(&file)?;
    Ok(file.with_extension(""))
}
