//! Archives that the kernel unpacks into its initial RAM file system.
//!
//! The format is "newc" cpio. Entries are sorted and carry neither times nor
//! owners, so equal trees give equal bytes.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use cpio::newc::{self, Builder, ModeFileType};
use fs_err as fs;

use crate::error::{Error, Result};
use crate::key::files_below;
use crate::root::MERGED;

/// What is at a path of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A directory with these permission bits.
    Directory(u32),
    /// A file with these permission bits and the content of a file of the host.
    Copy(u32, PathBuf),
    /// A file with these permission bits and this content.
    Text(u32, Vec<u8>),
    /// A symbolic link.
    Link(String),
}

/// A tree of files for the guest; parents are added when they are missing.
///
/// Keys are paths without the leading slash. In their order a directory comes
/// before what is in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Puts `node` at `path`, replacing what is there.
    ///
    /// # Errors
    /// [`Error::BadGuestFile`] for a path that is relative, not UTF-8, or leaves the root,
    /// and for anything else in place of a directory.
    pub(crate) fn put(&mut self, path: impl AsRef<Path>, node: Node) -> Result<()> {
        let name = guest_name(path.as_ref())?;
        let mut parent = name.as_str();
        while let Some((above, _)) = parent.rsplit_once('/') {
            let above_node = self.nodes.entry(above.to_owned());
            above_node.or_insert(Node::Directory(0o755));
            parent = above;
        }
        let replaced = self.nodes.get(&name);
        if matches!(replaced, Some(Node::Directory(_))) && !matches!(node, Node::Directory(_)) {
            return Err(Error::BadGuestFile {
                path: path.as_ref().to_owned(),
                reason: "a directory of the guest is there",
            });
        }
        self.nodes.insert(name, node);
        Ok(())
    }

    /// Puts every file below the host's directory `host` below `path` (0644).
    pub(crate) fn put_directory(&mut self, path: &str, host: &Path) -> Result<()> {
        for file in files_below(host, |_| false)? {
            let node = Node::Copy(0o644, host.join(&file));
            self.put(Path::new(path).join(file), node)?;
        }
        Ok(())
    }

    /// Whether something is at `path`, a path without the leading slash.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// Writes the tree as one archive to `out`.
    pub(crate) fn write(&self, mut out: impl Write) -> Result<()> {
        for (index, (name, node)) in self.nodes.iter().enumerate() {
            // Inode numbers must differ, or the kernel makes hard links.
            let inode = index as u32 + 1;
            let content = node.content()?;
            let size = u32::try_from(content.len()).map_err(|_| Error::BadGuestFile {
                path: Path::new("/").join(name),
                reason: "files of 4 GiB or more do not fit the format",
            })?;
            let mut writer = node.builder(name).ino(inode).write(&mut out, size);
            writer.write_all(&content)?;
            writer.finish()?;
        }
        Ok(newc::trailer(out)?.flush()?)
    }
}

impl Node {
    fn content(&self) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Directory(_) => Vec::new(),
            Self::Link(target) => target.clone().into_bytes(),
            Self::Text(_, text) => text.clone(),
            Self::Copy(_, path) => fs::read(path)?,
        })
    }

    fn builder(&self, name: &str) -> Builder {
        let (kind, mode, links) = match self {
            Self::Directory(mode) => (ModeFileType::Directory, *mode, 2),
            Self::Link(_) => (ModeFileType::Symlink, 0o777, 1),
            Self::Copy(mode, _) | Self::Text(mode, _) => (ModeFileType::Regular, *mode, 1),
        };
        Builder::new(name)
            .mode(mode & 0o7777)
            .set_mode_file_type(kind)
            .nlink(links)
    }
}

/// The name of an absolute guest path in an archive, with links into `usr` followed.
fn guest_name(path: &Path) -> Result<String> {
    let bad = |reason| Error::BadGuestFile {
        path: path.to_owned(),
        reason,
    };
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(part) => {
                parts.push(part.to_str().ok_or_else(|| bad("its path is not UTF-8"))?);
            }
            _ => return Err(bad("its path has \".\" or \"..\" in it")),
        }
    }
    if !path.is_absolute() {
        return Err(bad("its path is not absolute"));
    }
    match parts.as_slice() {
        [] => Err(bad("it is the root itself")),
        [top, _, ..] if MERGED.contains(top) => Ok(format!("usr/{}", parts.join("/"))),
        _ => Ok(parts.join("/")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn written(tree: &Tree) -> Vec<u8> {
        let mut bytes = Vec::new();
        tree.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn equal_trees_give_equal_bytes() {
        let host = tempfile::NamedTempFile::new().unwrap();
        let sample = || {
            let program = Node::Copy(0o755, host.path().to_owned());
            let mut tree = Tree::default();
            tree.put("/usr/bin/b", program).unwrap();
            tree.put("/a", Node::Text(0o644, b"abc".to_vec())).unwrap();
            tree.put("/bin", Node::Link("usr/bin".into())).unwrap();
            tree.put("/tmp", Node::Directory(0o1777)).unwrap();
            written(&tree)
        };
        let first = sample();
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        host.as_file().set_modified(long_ago).unwrap();
        assert_eq!(first, sample());
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut tree = Tree::default();
        tree.put("/a", Node::Text(0o644, b"abc".to_vec())).unwrap();
        let header = |fields: [u32; 13]| {
            let fields = fields.map(|field| format!("{field:08x}"));
            format!("070701{}", fields.concat())
        };
        // Inode, mode, owner, group, links, time, size, four device numbers, name's
        // length, checksum.
        let file = header([1, 0o100644, 0, 0, 1, 0, 3, 0, 0, 0, 0, 2, 0]);
        let trailer = header([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 11, 0]);
        let expected = format!("{file}a\0abc\0{trailer}TRAILER!!!\0\0\0\0");
        let text = String::from_utf8(written(&tree)).unwrap();
        assert_eq!(text.to_lowercase(), expected.to_lowercase());
    }

    fn read_back(mut rest: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        loop {
            let mut reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            found.insert(name, (mode, content));
            rest = reader.finish().unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read_back(
            files in btree_map("/[a-c]{1,3}/[d-f]{1,9}", vec(any::<u8>(), 0..50), 0..9),
            mode in 0..0o10000_u32,
        ) {
            let mut tree = Tree::default();
            for (name, content) in &files {
                tree.put(name, Node::Text(mode, content.clone())).unwrap();
            }
            let mut found = read_back(&written(&tree));
            found.retain(|_, (mode, _)| *mode & 0o170000 == 0o100000);
            let expected = files.into_iter().map(|(name, content)| {
                (name.trim_start_matches('/').to_owned(), (mode | 0o100000, content))
            });
            prop_assert_eq!(found, expected.collect::<BTreeMap<_, _>>());
        }
    }

    #[test]
    fn parents_come_first_and_links_into_usr_are_followed() {
        let mut tree = Tree::default();
        let text = || Node::Text(0o644, Vec::new());
        tree.put("/bin/tool", text()).unwrap();
        tree.put("/lib/modules/1/x.ko", text()).unwrap();
        let paths: Vec<_> = tree.nodes.keys().map(String::as_str).collect();
        let expected = "usr usr/bin usr/bin/tool usr/lib usr/lib/modules usr/lib/modules/1 \
                        usr/lib/modules/1/x.ko";
        assert_eq!(paths.join(" "), expected);
    }

    #[test]
    fn a_directory_gets_other_permissions_but_is_not_replaced() {
        let mut tree = Tree::default();
        tree.put("/a/b", Node::Directory(0o700)).unwrap();
        tree.put("/a", Node::Directory(0o500)).unwrap();
        let error = tree.put("/a", Node::Link("b".into())).unwrap_err();
        assert!(error.to_string().starts_with("/a cannot go into"));
        assert_eq!(tree.nodes["a"], Node::Directory(0o500));
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in ["relative", "/", "/a/../b", ""] {
            assert!(guest_name(Path::new(path)).is_err(), "{path}");
        }
    }
}
