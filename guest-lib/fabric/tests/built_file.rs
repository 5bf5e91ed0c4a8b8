//! The file that loaders open.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use object::{Object, ObjectSymbol};
use qnic::NodeId;
use qnic_device::{ByteSize, Config, Device, NicSettings};
use qnic_images::{Cache, Program, Provisioner, Silent};

mod built;

use built::library_file;

fn library() -> Vec<u8> {
    std::fs::read(library_file()).unwrap()
}

/// Names of other libraries' functions would take the place of the loader's own (X10).
#[test]
fn only_the_entry_is_exported() {
    let library = library();
    let library = object::File::parse(&*library).unwrap();
    let exported: Vec<&str> = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert_eq!(exported, ["fi_prov_ini"]);
}

/// It finds the functions of its loader by itself, so it loads where libfabric is hidden.
#[test]
fn nothing_of_libfabric_is_linked() {
    let library = library();
    let library = object::File::parse(&*library).unwrap();
    let wanted = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined());
    let wanted: Vec<&str> = wanted.map(|symbol| symbol.name().unwrap()).collect();
    assert!(wanted.contains(&"dlsym"), "{wanted:?}");
    let of_libfabric = |name: &&&str| name.starts_with("fi_") || name.starts_with("ofi_");
    assert_eq!(wanted.iter().find(of_libfabric), None);
}

/// Longest time until the server listens, on a machine that does much else.
const SOON: Duration = Duration::from_secs(60);

/// A stock libfabric loads the file, and its `fi_pingpong` exchanges checked messages of all its lengths between two
/// nodes (X10).
#[test]
fn fi_pingpong_runs_between_two_nodes() {
    let provisioner = Provisioner::new(Cache::of_user().unwrap(), Arc::new(Silent));
    let program = provisioner.fi_pingpong().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(library_file(), folder.path().join("libqnic-fi.so")).unwrap();
    let nics = [0, 1].map(|node| {
        let socket = folder.path().join(node.to_string());
        NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(256))
    });
    let device = Device::start(&Config::new(nics.into())).unwrap();
    for space in ["msg", "tagged"] {
        let port = free_port();
        let mut server = start(&program, folder.path(), 0, &[space, "-B", &port]);
        let began = Instant::now();
        // It is refused until the server listens.
        let client = loop {
            let client = start(
                &program,
                folder.path(),
                1,
                &[space, "-P", &port, "127.0.0.1"],
            );
            let ended = client.wait_with_output().unwrap();
            if ended.status.success() || began.elapsed() > SOON {
                break ended;
            }
        };
        if !client.status.success() {
            server.kill().unwrap();
        }
        let server = server.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&client.stdout);
        assert!(
            client.status.success() && server.status.success(),
            "{client:?}, {server:?}"
        );
        assert!(said.contains("1m"), "{said}");
    }
    device.stop().unwrap();
}

/// A port that is free when this looks.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Messages are checked (`-c`).
fn start(program: &Program, folder: &Path, node: u16, words: &[&str]) -> Child {
    let mut command = program.command();
    command
        .args(["-p", "qnic", "-e", "rdm", "-c", "-I", "20", "-m"])
        .args(words)
        .env("FI_PROVIDER_PATH", folder)
        .env("QNIC_HOST_SOCKET", folder.join(node.to_string()))
        .env("QNIC_HOST_MEMORY", "96MiB")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}
