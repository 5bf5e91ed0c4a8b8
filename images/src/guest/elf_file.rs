//! What has to be read from ELF files: the libraries a program needs, and what a
//! kernel module says of itself.

use std::fs;
use std::path::Path;

use elf::abi::DT_NEEDED;
use elf::endian::AnyEndian;
use elf::parse::ParseError;
use elf::ElfBytes;

use crate::error::{Error, Result};

/// File names of the libraries that the ELF file at `path` needs.
pub(crate) fn needs(path: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    parse_needs(&bytes).map_err(|error| broken(path, &error))
}

fn parse_needs(bytes: &[u8]) -> Result<Vec<String>, ParseError> {
    let file = ElfBytes::<AnyEndian>::minimal_parse(bytes)?;
    let common = file.find_common_data()?;
    let mut libraries = Vec::new();
    if let (Some(dynamic), Some(strings)) = (common.dynamic, common.dynsyms_strs) {
        for entry in dynamic.iter().filter(|entry| entry.d_tag == DT_NEEDED) {
            libraries.push(strings.get(entry.d_val() as usize)?.to_owned());
        }
    }
    Ok(libraries)
}

/// The fields of a kernel module's information section, in their order.
pub(crate) fn module_info(path: &Path) -> Result<Vec<(String, String)>> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let parse = || -> Result<Vec<u8>, ParseError> {
        let file = ElfBytes::<AnyEndian>::minimal_parse(&bytes)?;
        match file.section_header_by_name(".modinfo")? {
            Some(header) => Ok(file.section_data(&header)?.0.to_vec()),
            None => Ok(Vec::new()),
        }
    };
    let section = parse().map_err(|error| broken(path, &error))?;
    Ok(fields(&section))
}

/// Reads zero-terminated `name=value` strings.
fn fields(section: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(section);
    text.split('\0')
        .filter_map(|field| field.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn broken(path: &Path, error: &ParseError) -> Error {
    Error::UnexpectedPackage {
        what: format!("a well-formed ELF file ({error})"),
        path: path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_libraries() {
        let needs = needs(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.contains(&"libc.so.6".to_owned()), "{needs:?}");
    }

    #[test]
    fn a_truncated_elf_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, b"\x7fELF\x02\x01").unwrap();
        assert!(needs(&path).is_err());
    }

    #[test]
    fn module_information_is_split_into_fields() {
        let fields = fields(b"depends=a,b\0alias=virtio:d1v*\0\0name=x\0");
        let expected = [("depends", "a,b"), ("alias", "virtio:d1v*"), ("name", "x")];
        assert_eq!(fields, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }
}
