//! A small project to start from: a program that uses the library, a cluster file, a test
//! that runs the one on the other, and a workflow for CI.
//!
//! The project knows this checkout as `.qnic`: here a link, in CI a clone. It is written
//! beside its place and moved there whole.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use qnic_cluster::MAX_NAME;

/// Names that a package cannot have here: words of Rust, and what it depends on.
const TAKEN: [&str; 8] = [
    "qnic", "test", "core", "std", "alloc", "crate", "self", "super",
];

/// Files of a project: path and content, in which `@name@` and `@cluster@` stand for names.
const FILES: [(&str, &str); 7] = [
    ("Cargo.toml", include_str!("../project/Cargo.toml.in")),
    (".gitignore", include_str!("../project/gitignore")),
    ("README.md", include_str!("../project/README.md.in")),
    ("cluster.toml", include_str!("../project/cluster.toml.in")),
    ("src/main.rs", include_str!("../project/src/main.rs")),
    (
        "tests/on_guests.rs",
        include_str!("../project/tests/on_guests.rs.in"),
    ),
    (
        ".github/workflows/test.yml",
        include_str!("../project/github/test.yml.in"),
    ),
];

/// Why a project cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// Its name is none for a package.
    #[error(
        "\"{0}\" is no name for a package: expected a-z, 0-9, \"-\" and \"_\", a letter \
         first, and none that Rust or qnic uses"
    )]
    Name(String),
    /// There is something already.
    #[error("{} exists and is not empty", .0.display())]
    Taken(PathBuf),
    /// A file cannot be written.
    #[error("cannot make {}: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Makes a project in `dir`, named as that, which uses the checkout of qnic in `checkout`.
/// Returns its name.
///
/// # Errors
/// [`ProjectError`]; nothing is left then.
pub fn create(dir: &Path, checkout: &Path) -> Result<String, ProjectError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| ProjectError::Io { path, error }
    };
    let dir = std::path::absolute(dir).map_err(failed(dir))?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    check_name(&name)?;
    if fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file() {
        return Err(ProjectError::Taken(dir));
    }
    let above = dir.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(above).map_err(failed(above))?;
    let scratch = above.join(format!(".{name}.{}", std::process::id()));
    let made = fill(&scratch, &name, checkout).and_then(|()| fs::rename(&scratch, &dir));
    made.map_err(|error| {
        // What is left of it has no use, and its own error less than the first.
        let _ = fs::remove_dir_all(&scratch);
        failed(&dir)(error)
    })?;
    Ok(name.into_owned())
}

fn fill(dir: &Path, name: &str, checkout: &Path) -> io::Result<()> {
    let cluster = name.replace('_', "-");
    let cluster: String = cluster.chars().take(MAX_NAME).collect();
    for (path, text) in FILES {
        let path = dir.join(path);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        let text = text.replace("@name@", name).replace("@cluster@", &cluster);
        fs::write(path, text)?;
    }
    symlink(checkout, dir.join(".qnic"))
}

fn check_name(name: &str) -> Result<(), ProjectError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let first = name.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    match first && name.chars().all(plain) && !TAKEN.contains(&name) {
        true => Ok(()),
        false => Err(ProjectError::Name(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_cluster::ClusterSpec;

    #[test]
    fn a_project_is_whole_and_its_cluster_file_right() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("deep/my_first-test-of-a-long-name");
        let name = create(&dir, Path::new("/src/qnic")).unwrap();
        assert_eq!(name, "my_first-test-of-a-long-name");
        for (path, _) in FILES {
            let text = fs::read_to_string(dir.join(path)).unwrap();
            assert!(
                !text.contains("@name@") && !text.contains("@cluster@"),
                "{path}"
            );
        }
        assert_eq!(
            fs::read_link(dir.join(".qnic")).unwrap(),
            Path::new("/src/qnic")
        );
        let spec = ClusterSpec::load(&dir.join("cluster.toml")).unwrap();
        assert_eq!(spec.name, "my-first-test-of-a-long-");
        assert_eq!(spec.schedule().len(), 2);
        let left = fs::read_dir(dir.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "only the project");
        assert!(matches!(
            create(&dir, Path::new("/src/qnic")),
            Err(ProjectError::Taken(_))
        ));
    }

    #[test]
    fn an_empty_directory_is_filled_and_wrong_names_are_refused() {
        let above = tempfile::tempdir().unwrap();
        let empty = above.path().join("fresh");
        fs::create_dir(&empty).unwrap();
        create(&empty, Path::new("/src/qnic")).unwrap();
        for name in ["1st", "Big", "a b", "qnic", "test", "-x"] {
            let error = create(&above.path().join(name), Path::new("/q")).unwrap_err();
            assert!(matches!(error, ProjectError::Name(_)), "{name}: {error}");
        }
        let blocked = above.path().join("fresh/Cargo.toml/below");
        assert!(matches!(
            create(&blocked, Path::new("/q")),
            Err(ProjectError::Io { .. })
        ));
    }
}
