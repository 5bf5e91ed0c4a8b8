//! A file or a directory as one byte stream with a checksum, and back.
//!
//! The stream is a tar archive whose only top entry is named like the source,
//! followed by its SHA-256. Unpacking fills a directory beside the destination
//! first and renames it once the checksum is right, so that half of it is never
//! seen. The same code runs on both sides.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tar::{Archive, Builder, EntryType, Header};

use crate::checksum::{ChecksumReader, ChecksumWriter};

/// Most bytes of a file that says it is empty but is not (as in `/proc`).
const MAX_UNSIZED: u64 = 64 << 20;

/// Writes `path`, with all that is in it, to `out`. Symbolic links below `path`
/// stay links; permission bits are kept.
///
/// # Errors
/// The first file that could not be read, named in the message; also one that is
/// neither file, directory nor link, and one that shrinks while it is read.
pub fn pack(path: &Path, out: impl Write) -> io::Result<()> {
    let real = fs::canonicalize(path).map_err(|error| named(path, error))?;
    let name = path.file_name().or(real.file_name());
    let name = name.ok_or_else(|| named(path, io::Error::other("has no name to copy under")))?;
    let mut out = ChecksumWriter::new(out);
    let mut builder = Builder::new(&mut out);
    add(&mut builder, &real, Path::new(name))?;
    builder.finish()?;
    drop(builder);
    out.finish()
}

/// Makes what was packed: as `dest`, or inside it if `dest` is a directory.
/// Returns the path of what was made.
///
/// # Errors
/// A wrong checksum, a directory in the way, or a file that could not be written.
/// Nothing is left of it then.
pub fn unpack(input: impl Read, dest: &Path) -> io::Result<PathBuf> {
    let into = dest.is_dir();
    let parent = if into { Some(dest) } else { dest.parent() };
    let parent = match parent {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(named(dest, io::ErrorKind::AlreadyExists.into())),
    };
    let staging = tempfile::Builder::new()
        .prefix(".qnic-cp-")
        .tempdir_in(parent)
        .map_err(|error| named(parent, error))?;
    let mut reader = ChecksumReader::new(input);
    let mut archive = Archive::new(&mut reader);
    archive.set_preserve_permissions(true);
    archive
        .unpack(staging.path())
        .map_err(|error| with_causes(&error))?;
    io::copy(&mut reader, &mut io::sink())?;
    let made = fs::read_dir(staging.path())?
        .next()
        .ok_or(io::ErrorKind::UnexpectedEof)??;
    let target = match into {
        true => dest.join(made.file_name()),
        false => dest.to_owned(),
    };
    fs::rename(made.path(), &target).map_err(|error| named(&target, error))?;
    Ok(target)
}

fn add(builder: &mut Builder<impl Write>, path: &Path, name: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path).map_err(|error| named(path, error))?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        builder.append_dir(name, path)?;
        let mut children = fs::read_dir(path)
            .and_then(|entries| entries.collect::<io::Result<Vec<_>>>())
            .map_err(|error| named(path, error))?;
        children.sort_by_key(|child| child.file_name());
        children
            .iter()
            .try_for_each(|child| add(builder, &child.path(), &name.join(child.file_name())))
    } else if kind.is_symlink() {
        let target = fs::read_link(path).map_err(|error| named(path, error))?;
        let mut header = header_of(&metadata, 0);
        header.set_entry_type(EntryType::Symlink);
        builder.append_link(&mut header, name, target)
    } else if kind.is_file() {
        add_file(builder, path, name, &metadata).map_err(|error| named(path, error))
    } else {
        let message = "is neither a file, a directory nor a link: it cannot be copied";
        Err(named(path, io::Error::other(message)))
    }
}

fn add_file(
    builder: &mut Builder<impl Write>,
    path: &Path,
    name: &Path,
    metadata: &Metadata,
) -> io::Result<()> {
    let file = File::open(path)?;
    if metadata.len() > 0 {
        // As much as is announced: no more if the file grows.
        let mut content = file.take(metadata.len());
        builder.append_data(&mut header_of(metadata, metadata.len()), name, &mut content)?;
        if content.limit() > 0 {
            let message = "became shorter while it was read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        return Ok(());
    }
    let mut content = Vec::new();
    file.take(MAX_UNSIZED).read_to_end(&mut content)?;
    let mut header = header_of(metadata, content.len() as u64);
    builder.append_data(&mut header, name, &content[..])
}

fn header_of(metadata: &Metadata, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_metadata(metadata);
    header.set_size(size);
    header
}

/// The error with all its causes; the one that matters is the last.
fn with_causes(error: &io::Error) -> io::Error {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let message = causes.fold(error.to_string(), |message, cause| {
        format!("{message}: {cause}")
    });
    io::Error::new(error.kind(), message)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    fn packed(path: &Path) -> Vec<u8> {
        let mut stream = Vec::new();
        pack(path, &mut stream).unwrap();
        stream
    }

    fn copy(from: &Path, to: &Path) -> PathBuf {
        unpack(&packed(from)[..], to).unwrap()
    }

    #[test]
    fn a_tree_comes_back_with_modes_and_links() {
        let home = tempfile::tempdir().unwrap();
        let tree = home.path().join("tree");
        fs::create_dir_all(tree.join("deep/empty")).unwrap();
        fs::write(tree.join("deep/data"), vec![7; 100_000]).unwrap();
        fs::set_permissions(tree.join("deep/data"), fs::Permissions::from_mode(0o751)).unwrap();
        symlink("deep/data", tree.join("link")).unwrap();

        let copy = copy(&tree, &home.path().join("copy"));
        assert_eq!(copy, home.path().join("copy"));
        assert_eq!(fs::read(copy.join("deep/data")).unwrap(), vec![7; 100_000]);
        let permissions = fs::metadata(copy.join("deep/data")).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o751);
        let target = fs::read_link(copy.join("link")).unwrap();
        assert_eq!(target, Path::new("deep/data"));
        assert!(copy.join("deep/empty").is_dir());
    }

    #[test]
    fn a_directory_as_destination_receives_the_file_and_keeps_the_rest() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "new").unwrap();
        fs::create_dir(home.path().join("dir")).unwrap();
        fs::write(home.path().join("dir/file"), "old").unwrap();
        fs::write(home.path().join("dir/other"), "stays").unwrap();
        let made = copy(&home.path().join("file"), &home.path().join("dir"));
        assert_eq!(made, home.path().join("dir/file"));
        assert_eq!(fs::read(made).unwrap(), b"new");
        assert_eq!(fs::read_dir(home.path().join("dir")).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_claims_to_be_empty_is_copied_whole() {
        let home = tempfile::tempdir().unwrap();
        let made = copy(Path::new("/proc/self/status"), home.path());
        assert!(fs::read_to_string(made).unwrap().starts_with("Name:"));
    }

    #[test]
    fn a_damaged_stream_leaves_nothing_behind() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("source");
        fs::write(&source, "content").unwrap();
        let mut stream = packed(&source);
        stream[600] ^= 1;
        assert!(unpack(&stream[..], &home.path().join("copy")).is_err());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_source_is_named() {
        let error = pack(Path::new("/nowhere/x"), io::sink()).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/x: "), "{error}");
    }
}
