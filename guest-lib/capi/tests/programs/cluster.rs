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

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn socket(&self, node: u16) -> PathBuf {
        self.folder.path().join(format!("{node}.sock"))
    }

    /// The NIC of node 1, for the Rust program.
    pub(crate) fn nic(&self) -> Nic {
        Nic::open_host_with(self.socket(1), 32 << 20).unwrap()
    }

    /// The Rust program, on node 1.
    pub(crate) fn rust(&self, port: u16) -> Endpoint {
        self.nic().register(Port(port)).unwrap()
    }

    /// Compiles a C program for the sanitizers.
    pub(crate) fn compile(&self, source: &Path) -> PathBuf {
        compile(source, self.folder.path(), Checker::Sanitizers)
    }

    /// Compiles a C program, and runs it on node 0 until it ends well, without a word.
    pub(crate) fn run(&self, source: &str, checker: Checker) {
        let program = compile(&file(source), self.folder.path(), checker);
        let program = self.start_with(checker.command(), &program, 0, &[]);
        assert_eq!(program.finish(), "");
    }

    /// Starts a C program on a node.
    pub(crate) fn start(&self, program: &Path, node: u16, arguments: &[&str]) -> Program {
        self.start_with(&[], program, node, arguments)
    }

    fn start_with(
        &self,
        before: &[&str],
        program: &Path,
        node: u16,
        arguments: &[&str],
    ) -> Program {
        // What hangs is ended, and has failed.
        let child = Command::new("timeout")
            .arg("600")
            .args(before)
            .arg(program)
            .args(arguments)
            .env("QNIC_HOST_SOCKET", self.socket(node))
            .env("QNIC_HOST_MEMORY", "32MiB")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Program(Some(child.unwrap()))
    }

    /// Compiles an example, and starts it on node 0.
    pub(crate) fn example(&self, name: &str, arguments: &[&str]) -> Program {
        let program = self.compile(&file(&format!("examples/{name}.c")));
        self.start(&program, 0, arguments)
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
            // `timeout` passes this signal on.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }
}

/// A file of this package.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The static library, which cargo has put beside this program.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libqnic_capi.a")
}

/// What looks at a program while it runs.
#[derive(Clone, Copy)]
pub(crate) enum Checker {
    /// AddressSanitizer and that of undefined behaviour: at the code in C, and at the heap of all.
    Sanitizers,
    /// At all code, that of the library included, and slower.
    Valgrind,
}

const WARNINGS: &[&str] = &["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"];
const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
const VALGRIND: &[&str] = &[
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    // Rust keeps what a thread needs in places that are no plain pointers.
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

impl Checker {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Checker::Sanitizers => SANITIZERS,
            Checker::Valgrind => &[],
        }
    }

    fn command(self) -> &'static [&'static str] {
        match self {
            Checker::Sanitizers => &[],
            Checker::Valgrind => VALGRIND,
        }
    }
}

/// Compiles a program with all warnings.
fn compile(source: &Path, folder: &Path, checker: Checker) -> PathBuf {
    let name = source.file_stem().unwrap().to_string_lossy();
    let program = folder.join(&*name);
    let mut command = Command::new("cc");
    command.args(WARNINGS).args(checker.flags());
    command.args(["-O1", "-g", "-pthread"]);
    for folder in ["include", "examples", "tests/programs"] {
        command.arg("-I").arg(file(folder));
    }
    command.arg("-o").arg(&program).arg(source).arg(library());
    command.args(["-lm", "-ldl", "-lgcc_s", "-lutil", "-lrt"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", source.display());
    program
}
