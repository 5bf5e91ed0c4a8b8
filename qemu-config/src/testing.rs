//! A runtime directory that goes away with its test, and a process that does not end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{json, Value};

use crate::accel::Accel;
use crate::dirs::{ClusterDir, NodeDir};
use crate::lock::LockFile;
use crate::manifest::{Manifest, Mode, VERSION};
use crate::process::{ProcessId, MARKER};
use crate::state::Runtime;
use crate::{ClusterSpec, NodeSpec, Result};

/// A runtime of a test, and the directory of its cluster `c`.
pub(crate) struct TestDir {
    temp: tempfile::TempDir,
    pub(crate) runtime: Runtime,
    pub(crate) dir: ClusterDir,
}

impl TestDir {
    /// The directories are not there yet.
    pub(crate) fn new() -> Self {
        // A comma has a meaning on QEMU's command line.
        let temp = tempfile::Builder::new().prefix("a,b").tempdir().unwrap();
        let runtime = Runtime::at(temp.path().join("r"), temp.path().join("d")).unwrap();
        let dir = runtime.dir("c");
        Self { temp, runtime, dir }
    }

    /// Makes the cluster, which has one node, as a program does that boots it.
    pub(crate) fn create(&self, mode: Mode) -> Result<(ClusterDir, LockFile)> {
        let manifest = Manifest {
            version: VERSION.to_owned(),
            mode,
            accel: Accel::Tcg,
            owner: ProcessId::own(),
            created: 1,
            disks: self.runtime.disks("c"),
            host: None,
        };
        self.runtime.create(&Self::spec(), &manifest)
    }

    /// What [`Self::create`] makes a cluster of.
    pub(crate) fn spec() -> ClusterSpec {
        ClusterSpec::new("c").with(NodeSpec::new("a"))
    }

    /// The directory of the cluster's node `a`, which is made.
    pub(crate) fn node(&self) -> NodeDir {
        let node = self.dir.node("a");
        std::fs::create_dir_all(node.path()).unwrap();
        node
    }

    pub(crate) fn path(&self) -> &Path {
        self.temp.path()
    }
}

/// A socket that answers requests, a line each, and what it was asked. It ends with the test process.
pub(crate) struct Asked(Arc<Mutex<Vec<Value>>>);

impl Asked {
    /// The monitor of a node's QEMU, which answers a command as `answer` says of its name.
    pub(crate) fn qemu(dir: &NodeDir, answer: impl Fn(&str) -> Value + Send + 'static) -> Self {
        let greeting = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";
        Self::serve(
            &dir.monitor(),
            greeting,
            move |request| json!({ "return": answer(request["execute"].as_str().unwrap_or_default()) }),
        )
    }

    /// A device process that always gives this answer.
    pub(crate) fn device(control: &Path, answer: Value) -> Self {
        Self::serve(control, "", move |_| answer.clone())
    }

    fn serve(
        path: &Path,
        greeting: &'static str,
        answer: impl Fn(&Value) -> Value + Send + 'static,
    ) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (listener, all) = (UnixListener::bind(path).unwrap(), Arc::clone(&asked));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut to = client.try_clone().unwrap();
                to.write_all(greeting.as_bytes()).unwrap();
                for line in BufReader::new(client).lines().map_while(Result::ok) {
                    let request = serde_json::from_str(&line).unwrap();
                    let answer = answer(&request);
                    all.lock().unwrap().push(request);
                    if writeln!(to, "{answer}").is_err() {
                        break;
                    }
                }
            }
        });
        Self(asked)
    }

    /// The names of the commands, in their order, but for the one that opens each connection.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |request: &Value| {
            let name = request.get("execute").or_else(|| request.get("cmd"));
            name.and_then(Value::as_str).map(str::to_owned)
        };
        let asked = self.0.lock().unwrap();
        let names = asked.iter().filter_map(name);
        names.filter(|name| name != "qmp_capabilities").collect()
    }
}

/// A process of the cluster in `dir` that ignores SIGTERM, as a stuck QEMU would.
pub(crate) fn stubborn(dir: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; echo; read forever"]);
    command.env(MARKER, dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}
