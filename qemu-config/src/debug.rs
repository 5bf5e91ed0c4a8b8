//! For authors of drivers: a debugger on a guest's kernel, and a dump of its memory.
//!
//! QEMU's stub for gdb listens on a socket of the node. The kernel's symbols come from the guest itself
//! (`/proc/kallsyms`, which has those of modules too, where they were loaded): they become a file that gdb
//! reads. So they are right with and without a random place of the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use object::write::{Object, Symbol, SymbolSection};
use object::{
    elf, Architecture, BinaryFormat, Endianness, SectionFlags, SectionKind, SymbolFlags,
    SymbolKind, SymbolScope,
};
use serde_json::json;

use crate::guest_command::GuestCommand;
use crate::lock::LockFile;
use crate::node::Node;
use crate::node_state::NodeState;
use crate::qmp::{self, DumpState};
use crate::wait::{Deadline, Stop};
use crate::{Cluster, Error, Result};

/// Longest time for the guest to tell its symbols.
const SYMBOLS_LIMIT: Duration = Duration::from_secs(120);

/// Time between two looks at a dump.
const DUMP_TICK: Duration = Duration::from_millis(50);

/// Where an x86-64 kernel and its modules are, and how much room they have there.
const KERNEL_START: u64 = 0xffff_ffff_8000_0000;
const KERNEL_BYTES: u64 = 0x7f00_0000;

/// The module's file, and where the sections are that debug information is about: a line each, as in
/// `.text 0xffffffffc0201000`. Nothing if the module was built without.
const MODULE: &str = "echo /lib/modules/$(uname -r)/extra/qnic.ko";
const SECTIONS: &str = "grep -q '\\.debug_info' /lib/modules/$(uname -r)/extra/qnic.ko || exit 0; \
                        cd /sys/module/qnic/sections && \
                        for f in .text .data .bss .rodata .init.text .exit.text; do \
                        [ -e $f ] && echo $f $(cat $f); done; true";

/// What a debugger needs to look into a guest.
#[derive(Debug)]
pub struct Debugger {
    /// Commands that gdb reads (`gdb -x`): they load symbols and connect.
    pub script: PathBuf,
    /// Why there are no symbols, if there are none.
    pub without_symbols: Option<String>,
    was_paused: bool,
    /// There is one debugger of a node at a time.
    _lock: LockFile,
}

impl Cluster {
    /// Carries out `session` with what a debugger of a node's guest needs. QEMU listens no more when it is
    /// over, and a guest that was paused before is paused again.
    ///
    /// # Errors
    /// As [`Cluster::guest`], [`Node::debugger`] and [`Cluster::pause`].
    pub fn debug<T>(&self, node: &str, session: impl FnOnce(&Debugger) -> T) -> Result<T> {
        let guest = self.guest(node)?;
        let debugger = guest.debugger()?;
        let done = session(&debugger);
        guest.end_debugger()?;
        // QEMU has let it go on when the debugger went.
        if debugger.was_paused {
            self.pause(node)?;
        }
        Ok(done)
    }
}

impl Node {
    /// Has QEMU listen for a debugger, and collects symbols from the guest, which goes on until
    /// the debugger connects.
    ///
    /// # Errors
    /// [`Error::Guest`] if another debugger is attached; [`Error::Monitor`]; [`Error::Io`] if the files for
    /// the debugger cannot be written.
    pub fn debugger(&self) -> Result<Debugger> {
        let lock = LockFile::try_lock(&self.dir.gdb_lock())?.ok_or_else(|| {
            let message = "a debugger is attached: end it first";
            Error::guest(self.name(), message)
        })?;
        let mut script = "set confirm off\nset architecture i386:x86-64\n".to_owned();
        let state = self.state();
        let symbols = self.symbols(state);
        let without_symbols = match symbols {
            Ok(lines) => {
                script += &lines;
                None
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => Some(error.to_string()),
        };
        let socket = self.dir.gdb_socket();
        // The stub of an earlier debugger listens there no more.
        self.stub("none")?;
        let _ = fs::remove_file(&socket);
        let place = socket.display().to_string().replace(',', ",,");
        self.stub(&format!("unix:{place},server=on,wait=off"))?;
        script += &format!("target remote {}\n", socket.display());
        let path = self.dir.gdb_script();
        fs::write(&path, script).map_err(Error::io("write", &path))?;
        Ok(Debugger {
            script: path,
            without_symbols,
            was_paused: state == NodeState::Paused,
            _lock: lock,
        })
    }

    /// QEMU listens for no debugger any more.
    ///
    /// # Errors
    /// [`Error::Monitor`].
    pub fn end_debugger(&self) -> Result<()> {
        self.stub("none")
    }

    /// QEMU has no command of QMP for this.
    fn stub(&self, place: &str) -> Result<()> {
        let line = json!({ "command-line": format!("gdbserver {place}") });
        let said = self.monitor()?.execute(&qmp::HUMAN.with(line))?;
        let wrong = ["Could not", "Error", "error", "Invalid"];
        match wrong.iter().any(|wrong| said.contains(wrong)) {
            true => Err(Error::monitor(self.name(), said.trim())),
            false => Ok(()),
        }
    }

    /// Commands by which gdb loads the symbols of kernel and module.
    fn symbols(&self, state: NodeState) -> Result<String> {
        if state != NodeState::Ready {
            return Err(Error::guest(self.name(), format!("the guest is {state}")));
        }
        let ask = |script: &str| {
            let output = self.run(&GuestCommand::shell(script), SYMBOLS_LIMIT)?;
            Ok::<_, Error>(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let file = symbol_file(&ask("cat /proc/kallsyms")?)
            .map_err(|error| Error::guest(self.name(), error))?;
        let path = self.dir.gdb_symbols();
        fs::write(&path, file).map_err(Error::io("write", &path))?;
        let mut lines = format!("add-symbol-file {} {KERNEL_START:#x}\n", path.display());
        if let Some(load) = module_sections(&ask(SECTIONS)?) {
            let module = ask(MODULE)?;
            let path = self.dir.gdb_module();
            let _ = fs::remove_file(&path);
            self.get(Path::new(module.trim()), &path, &|_| {})?;
            lines += &format!("add-symbol-file {}{load}\n", path.display());
        }
        Ok(lines)
    }

    /// Writes the guest's memory and the state of its CPUs to a new file, in the ELF format that gdb and
    /// crash read. The guest stands still meanwhile. `progress` is told how many bytes of how many are
    /// written.
    ///
    /// # Errors
    /// [`Error::Monitor`], also if QEMU is writing another dump; [`Error::Host`] if there is such a file, or
    /// an unfinished one; [`Error::Interrupted`]: QEMU goes on writing [`Self::dump_part`].
    pub fn dump(&self, file: &Path, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        let file = std::path::absolute(file).map_err(Error::io("find", file))?;
        if file.exists() {
            let message = format!(
                "there is a file {} already: name another one",
                file.display()
            );
            return Err(Error::Host(message));
        }
        let part = Self::dump_part(&file);
        let before = self.monitor()?.execute(&qmp::QUERY_DUMP)?;
        if before.status == DumpState::Active {
            let message = format!(
                "it is writing another dump, {} of {} bytes: wait for its end",
                before.completed, before.total
            );
            return Err(Error::monitor(self.name(), message));
        }
        if part.exists() {
            let message = format!(
                "there is a file {} of a dump that was interrupted: remove it",
                part.display()
            );
            return Err(Error::Host(message));
        }
        let dump = json!({
            "paging": true, "detach": true, "format": "elf",
            "protocol": format!("file:{}", part.display()),
        });
        self.monitor()?
            .execute(&qmp::DUMP_GUEST_MEMORY.with(dump))?;
        loop {
            // Others may ask QEMU in between, and it may take longer than an answer of its monitor.
            let dump = self.monitor()?.execute(&qmp::QUERY_DUMP)?;
            progress(dump.completed, dump.total);
            match dump.status {
                DumpState::Active => {}
                DumpState::Completed => break,
                DumpState::Other => {
                    let _ = fs::remove_file(&part);
                    let message = format!(
                        "cannot write the dump to {}: is there room for {} bytes, and may QEMU write there?",
                        part.display(),
                        dump.total
                    );
                    return Err(Error::monitor(self.name(), message));
                }
            }
            let tick = Deadline::new(Some(DUMP_TICK), self.cancel.as_ref());
            if let Stop::Cancelled = tick.over() {
                return Err(Error::Interrupted);
            }
        }
        fs::rename(&part, &file).map_err(Error::io("rename", &part))
    }

    /// What QEMU writes of a dump to `file` until it is whole.
    pub fn dump_part(file: &Path) -> PathBuf {
        PathBuf::from(format!("{}.part", file.display()))
    }
}

/// A file with the kernel's symbols, made of the lines of `/proc/kallsyms`. Gdb is to load it at
/// [`KERNEL_START`].
fn symbol_file(kallsyms: &str) -> std::result::Result<Vec<u8>, String> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.add_section(
        Vec::new(),
        b".text".to_vec(),
        SectionKind::UninitializedData,
    );
    object.section_mut(text).flags = SectionFlags::Elf {
        sh_type: elf::SHT_NOBITS,
        sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
    };
    object.append_section_bss(text, KERNEL_BYTES, 4096);
    let mut count = 0;
    for line in kallsyms.lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let address = u64::from_str_radix(address, 16).unwrap_or(0);
        let Some(value) = address
            .checked_sub(KERNEL_START)
            .filter(|at| *at < KERNEL_BYTES)
        else {
            continue;
        };
        count += 1;
        object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value,
            size: 0,
            kind: match kind {
                "T" | "t" | "W" | "w" => SymbolKind::Text,
                _ => SymbolKind::Data,
            },
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        });
    }
    match count {
        0 => Err("/proc/kallsyms shows no addresses: kernel.kptr_restrict hides them".to_owned()),
        _ => object.write().map_err(|error| error.to_string()),
    }
}

/// Where gdb is to load each section of the module, as it wants it; `None` if there are none. The guest has said
/// it: what is no section and no address does not come into gdb's commands.
fn module_sections(lines: &str) -> Option<String> {
    let sections = lines.lines().filter_map(|line| line.split_once(' '));
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
    };
    let sections =
        sections.filter(|(name, address)| name.starts_with('.') && plain(name) && plain(address));
    let load = sections.map(|(name, address)| format!(" -s {name} {address}"));
    let load: String = load.collect();
    (!load.is_empty()).then_some(load)
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSymbol as _};

    use super::*;

    #[test]
    fn symbols_of_the_kernel_and_its_modules_are_where_they_were_loaded() {
        let kallsyms = "0000000000000000 A fixed_percpu_data\n\
                        ffffffff81000000 T _text\n\
                        ffffffffc0201000 t qnic_probe\t[qnic]\n\
                        ffffffff82000000 D jiffies\n";
        let file = symbol_file(kallsyms).unwrap();
        let file = object::File::parse(&*file).unwrap();
        let address = |name: &str| {
            let mut symbols = file.symbols();
            let symbol = symbols.find(|symbol| symbol.name() == Ok(name));
            symbol.map(|symbol| KERNEL_START + symbol.address())
        };
        assert_eq!(address("_text"), Some(0xffff_ffff_8100_0000));
        assert_eq!(address("qnic_probe"), Some(0xffff_ffff_c020_1000));
        assert_eq!(address("jiffies"), Some(0xffff_ffff_8200_0000));
        assert_eq!(address("fixed_percpu_data"), None);
    }

    #[test]
    fn hidden_addresses_are_named() {
        for hidden in ["", "0000000000000000 T _text\n", "nonsense\n"] {
            let error = symbol_file(hidden).unwrap_err();
            assert!(error.contains("kptr_restrict"), "{error}");
        }
    }

    #[test]
    fn a_module_that_is_not_loaded_has_no_sections() {
        assert_eq!(module_sections(""), None);
        let load = module_sections(".text 0xffffffffc0201000\n.data 0xffffffffc0203000\n");
        let expected = " -s .text 0xffffffffc0201000 -s .data 0xffffffffc0203000";
        assert_eq!(load.as_deref(), Some(expected));
        for hostile in [
            ".text 0x1 -readnow",
            "-s 0x1",
            ".text;shell 0x1",
            ".text $(id)",
        ] {
            assert_eq!(module_sections(hostile), None, "{hostile}");
        }
    }
}
