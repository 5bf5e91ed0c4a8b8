//! The kernel as its compressed image carries it.
//!
//! A bootable image uncompresses itself before anything else, and does it with the guest's own
//! instructions. Under emulation that is a quarter of what a boot takes; here it is a tenth of a
//! second, once for each kernel. QEMU starts what comes out by the kernel's entry for virtual
//! machines (PVH), an ELF note that stock kernels carry.
//!
//! ```text
//! image:  setup code, header │ code that uncompresses │ payload: compressed ELF, its size │ …
//!                   └ payload_offset, payload_length ──▶
//! ```
//!
//! The header is that of Documentation/arch/x86/boot.rst, 2.08 or newer. A kernel that is made in
//! another way than those known here boots as the image that it came as.

use std::path::{Path, PathBuf};

use elf::abi::{EM_X86_64, PT_NOTE};
use elf::endian::LittleEndian;
use elf::note::Note;
use elf::ElfBytes;
use fs_err as fs;

use crate::context::Context;
use crate::error::Result;
use crate::guest::uncompress::uncompress;
use crate::kernel::Kernel;
use crate::key::Key;
use crate::root::Root;

/// Version of the code that uncompresses; part of the keys.
const RECIPE: u32 = 1;
const FILE: &str = "vmlinux";

/// How compressed data begins, and the suffix of files with such data.
const COMPRESSIONS: [(&[u8], &str); 2] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zst"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
];

/// Where the kernel's build puts the uncompressed size, behind what is compressed.
const SIZE_BYTES: usize = 4;

/// Owner and type of the note with the address where a virtual machine enters the kernel.
const PVH_ENTRY: (&str, u64) = ("Xen", 18);

/// The uncompressed kernel, if QEMU can start it.
pub(crate) fn provision(
    cx: Context<'_>,
    kernel: &Kernel,
    kernel_root: &Root,
    tools: &Root,
) -> Result<Option<PathBuf>> {
    let mut key = Key::new(FILE, RECIPE);
    key.add(kernel_root.key()).add(tools.key());
    let name = format!("{FILE}-{}", key.finish());
    let dir = cx.cache.artefact(&name, cx.progress, |dir| {
        extract(&kernel.vmlinuz, dir, tools)
    })?;
    let file = dir.join(FILE);
    Ok(file.is_file().then_some(file))
}

/// Puts the kernel in `image` into `dir`, or nothing if QEMU could not start it.
fn extract(image: &Path, dir: &Path, tools: &Root) -> Result<()> {
    let image = fs::read(image)?;
    let Some((suffix, payload)) = payload(&image) else {
        return Ok(());
    };
    let compressed = dir.join(FILE).with_extension(suffix);
    fs::write(&compressed, payload)?;
    let kernel = uncompress(compressed, tools)?;
    if !has_pvh_entry(&fs::read(&kernel)?) {
        fs::remove_file(&kernel)?;
    }
    Ok(())
}

/// What is compressed in a bootable image, and the suffix of files with such data.
fn payload(image: &[u8]) -> Option<(&'static str, &[u8])> {
    const SETUP_SECTORS: usize = 0x1f1;
    const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
    const VERSION: usize = 0x206;
    const PAYLOAD: usize = 0x248;
    const SECTOR: usize = 512;
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let is_image = image.get(MAGIC.0..)?.starts_with(MAGIC.1);
    if !is_image || word(VERSION)? & 0xffff < 0x208 {
        return None;
    }
    // Zero means four, for old images.
    let setup_sectors = match *image.get(SETUP_SECTORS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = ((setup_sectors + 1) * SECTOR).checked_add(word(PAYLOAD)?)?;
    let end = start.checked_add(word(PAYLOAD + 4)?.checked_sub(SIZE_BYTES)?)?;
    let payload = image.get(start..end)?;
    let known = COMPRESSIONS
        .iter()
        .find(|(begin, _)| payload.starts_with(begin))?;
    Some((known.1, payload))
}

/// Returns true if the kernel says where a virtual machine enters it.
fn has_pvh_entry(kernel: &[u8]) -> bool {
    let Ok(file) = ElfBytes::<LittleEndian>::minimal_parse(kernel) else {
        return false;
    };
    let is_entry = |note: Note<'_>| match note {
        Note::Unknown(note) => (note.name_str().unwrap_or_default(), note.n_type) == PVH_ENTRY,
        _ => false,
    };
    let segments = file.segments().into_iter().flatten();
    file.ehdr.e_machine == EM_X86_64
        && segments
            .filter(|segment| segment.p_type == PT_NOTE)
            .filter_map(|segment| file.segment_data_as_notes(&segment).ok())
            .any(|mut notes| notes.any(is_entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with one sector of setup code, and this payload.
    fn image(version: u16, payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * 512];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&version.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend([0xee; 16]);
        image.extend(payload);
        image.extend([0xee; 100]);
        image
    }

    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfdcompressed\x00\x10\x00\x00";

    #[test]
    fn the_payload_is_found_without_its_size() {
        let image = image(0x20f, ZSTD);
        let expected = ("zst", &ZSTD[..ZSTD.len() - 4]);
        assert_eq!(payload(&image), Some(expected));
    }

    #[test]
    fn other_images_stay_as_they_are() {
        let good = image(0x20f, ZSTD);
        assert_eq!(payload(&image(0x207, ZSTD)), None);
        assert_eq!(payload(&image(0x20f, b"compressed otherwise")), None);
        // Whatever is cut off or wrong in the header.
        for length in 0..good.len() - 104 {
            assert_eq!(payload(&good[..length]), None, "{length}");
        }
        for at in 0x248..0x250 {
            let mut image = good.clone();
            image[at] = 0xff;
            if let Some((_, found)) = payload(&image) {
                assert!(found.len() < image.len());
            }
        }
    }

    /// An ELF file with one segment of notes.
    fn kernel(owner: &[u8; 4], number: u32) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16] = 2;
        file[18] = EM_X86_64 as u8;
        file[20] = 1;
        file[32] = 64;
        file[52] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = PT_NOTE as u8;
        file[64 + 8] = 64 + 56;
        file[64 + 32] = 20;
        file[64 + 48] = 4;
        for word in [4_u32, 4, number] {
            file.extend(word.to_le_bytes());
        }
        file.extend(owner);
        file.extend(0x0100_0b20_u32.to_le_bytes());
        file
    }

    #[test]
    fn only_a_kernel_with_an_entry_for_virtual_machines_is_taken() {
        assert!(has_pvh_entry(&kernel(b"Xen\0", 18)));
        assert!(!has_pvh_entry(&kernel(b"Xen\0", 17)));
        assert!(!has_pvh_entry(&kernel(b"GNU\0", 18)));
        let good = kernel(b"Xen\0", 18);
        for length in 0..good.len() {
            assert!(!has_pvh_entry(&good[..length]), "{length}");
        }
    }
}
