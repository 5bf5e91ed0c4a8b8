//! The program of a trial: one of the host, which is copied into the guests, or one of theirs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use qnic_cluster::GuestCommand;

/// What stands before a path in a guest.
const IN_GUEST: &[u8] = b"guest:";

/// Where programs of the host are put in guests.
const DIRECTORY: &str = "/root";

/// The program of a trial, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file of the host that is copied into guests.
    from: Option<PathBuf>,
    /// What runs in a guest.
    path: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    /// Finds out which program the words mean. The first is
    /// - `guest:PATH`: that program of the guest;
    /// - a path, with a slash in it: that file of this machine;
    /// - otherwise: a program in the guest's `PATH`.
    ///
    /// # Errors
    /// Says which file is not there or cannot be executed.
    pub fn find(words: &[OsString]) -> Result<Self, String> {
        let (first, arguments) = words.split_first().ok_or("there is no program")?;
        let arguments = arguments.to_vec();
        let bytes = first.as_bytes();
        if let Some(path) = bytes.strip_prefix(IN_GUEST) {
            return Ok(Self {
                from: None,
                path: OsString::from_vec(path.to_vec()),
                arguments,
            });
        }
        if !bytes.contains(&b'/') {
            return Ok(Self {
                from: None,
                path: first.clone(),
                arguments,
            });
        }
        let from = PathBuf::from(first);
        let name = check(&from)?;
        Ok(Self {
            path: Path::new(DIRECTORY).join(name).into(),
            from: Some(from),
            arguments,
        })
    }

    /// The file to copy into guests, and to where.
    pub fn copy(&self) -> Option<(&Path, &Path)> {
        Some((self.from.as_deref()?, Path::new(&self.path)))
    }

    /// What a guest runs.
    pub fn command(&self) -> GuestCommand {
        GuestCommand::new(&self.path).args(&self.arguments)
    }

    /// What runs on this machine.
    pub fn command_here(&self) -> GuestCommand {
        let path = self
            .from
            .as_ref()
            .map_or(&*self.path, |from| from.as_os_str());
        GuestCommand::new(path).args(&self.arguments)
    }

    /// Its name, for people.
    pub fn name(&self) -> String {
        let name = Path::new(&self.path).file_name();
        name.unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The name of the file `from`, which can be executed.
fn check(from: &Path) -> Result<&OsStr, String> {
    let shown = from.display();
    let metadata = std::fs::metadata(from).map_err(|error| {
        format!("cannot read the program {shown}: {error}; guest:{shown} is one of the guest")
    })?;
    if !metadata.is_file() {
        return Err(format!("the program {shown} is not a file"));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(format!("the program {shown} cannot be executed: chmod +x"));
    }
    from.file_name()
        .ok_or_else(|| format!("the program {shown} has no name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(words: &[&str]) -> Result<Program, String> {
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        Program::find(&words)
    }

    #[test]
    fn a_path_is_of_this_machine_and_a_name_of_the_guest() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prog");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let path = file.to_str().unwrap();
        let refused = find(&[path]).unwrap_err();
        assert!(refused.contains("chmod +x"), "{refused}");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        let program = find(&[path, "-x"]).unwrap();
        assert_eq!(program.copy(), Some((&*file, Path::new("/root/prog"))));
        assert_eq!(program.name(), "prog");
        let inside = find(&["sh", "-c", "true"]).unwrap();
        assert_eq!((inside.copy(), &*inside.name()), (None, "sh"));
        let inside = find(&["guest:/usr/bin/x"]).unwrap();
        assert_eq!((inside.copy(), &*inside.name()), (None, "x"));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let gone = find(&["./nowhere/x"]).unwrap_err();
        assert!(gone.contains("./nowhere/x"), "{gone}");
        assert!(find(&["/tmp/"]).unwrap_err().contains("is not a file"));
        assert!(find(&[]).is_err());
    }
}
