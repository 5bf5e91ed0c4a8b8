//! A device in this process, and C programs on its nodes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use qnic::{Endpoint, Nic, NodeId, Port};
use qnic_device::{ByteSize, Config, Device, NicSettings};
use tempfile::TempDir;

/// Long enough for anything that will happen at all.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A device with NICs for two nodes, and a folder for what is compiled.
pub(crate) struct Cluster {
    // Dropped first: its sockets are in the folder.
    _device: Device,
    folder: TempDir,
}

/// A C program that runs.
pub(crate) struct Program(Option<Child>);

impl Cluster {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nics = (0..2u16).map(|node| {
            let socket = folder.path().join(format!("{node}.sock"));
            NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(64))
        });
        let device = Device::start(&Config::new(nics.collect())).unwrap();
        Cluster {
            _device: device,
            folder,
        }
    }

    fn socket(&self, node: u16) -> PathBuf {
        self.folder.path().join(format!("{node}.sock"))
    }

    /// The Rust program, on node 1.
    pub(crate) fn rust(&self, port: u16) -> Endpoint {
        let nic = Nic::open_host_with(self.socket(1), 32 << 20).unwrap();
        nic.register(Port(port)).unwrap()
    }

    /// Starts a C program on a node.
    pub(crate) fn start(&self, source: &Path, node: u16, arguments: &[&str]) -> Program {
        let program = compile(source, self.folder.path(), node);
        let child = Command::new(program)
            .args(arguments)
            .env("QNIC_HOST_SOCKET", self.socket(node))
            .env("QNIC_HOST_MEMORY", "32MiB")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Program(Some(child.unwrap()))
    }
}

impl Program {
    /// Waits for its end; returns what it has printed.
    pub(crate) fn finish(mut self) -> String {
        let child = self.0.take().unwrap();
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{status}\n{said}");
        String::from_utf8(stdout).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Of a test that fails.
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A file of this package.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The static library, which cargo has put beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libqnic_capi.a")
}

/// Compiles a program with all warnings, and with AddressSanitizer.
fn compile(source: &Path, folder: &Path, node: u16) -> PathBuf {
    let name = source.file_stem().unwrap().to_string_lossy();
    let program = folder.join(format!("{name}-{node}"));
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-O1",
            "-g",
        ])
        .args([
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-pthread",
        ])
        .arg("-I")
        .arg(file("include"))
        .arg("-I")
        .arg(file("examples"))
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg(library())
        .args(["-lm", "-ldl", "-lgcc_s", "-lutil", "-lrt"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", source.display());
    program
}
