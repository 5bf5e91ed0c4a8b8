//! A running cluster.

use std::fs;
use std::path::PathBuf;

use crate::accel::Accel;
use crate::boot::{boot, node_of, BootOptions};
use crate::device;
use crate::dirs::ClusterDir;
use crate::node::Node;
use crate::owned::Owned;
use crate::process::ProcessId;
use crate::state::{Manifest, Mode, Runtime};
use crate::{Cancel, ClusterSpec, Error, Result};

/// A running cluster. One that was booted attached ends when this is dropped, or
/// when the process ends in whatever way.
pub struct Cluster {
    name: String,
    dir: ClusterDir,
    manifest: Manifest,
    nodes: Vec<Node>,
    owned: Option<Owned>,
}

impl Cluster {
    /// Boots `spec` and waits until every guest is ready.
    ///
    /// # Errors
    /// [`Error::Spec`], [`Error::Host`] and [`Error::InUse`] before anything is
    /// started; [`Error::Images`] and [`Error::Build`] while provisioning;
    /// [`Error::Failed`], [`Error::Timeout`] and [`Error::Interrupted`] after
    /// everything that was started has been ended again.
    pub fn boot(spec: &ClusterSpec, options: &BootOptions) -> Result<Self> {
        let (dir, nodes, owned) = boot(spec, options)?;
        let manifest = read_manifest(&spec.name, &dir)?;
        Ok(Self {
            name: spec.name.clone(),
            dir,
            manifest,
            nodes,
            owned,
        })
    }

    /// The cluster `name` that somebody booted. Its waits end when `cancel` is pulled.
    ///
    /// # Errors
    /// [`Error::NoSuchCluster`], or what is wrong with its files.
    pub fn open(runtime: &Runtime, name: &str, cancel: Option<&Cancel>) -> Result<Self> {
        let dir = runtime.existing(name)?;
        let spec = ClusterSpec::load(&dir.cluster_file())?;
        let manifest = read_manifest(name, &dir)?;
        let nodes = spec
            .nodes
            .iter()
            .map(|node| node_of(node, &dir, cancel))
            .collect();
        Ok(Self {
            name: name.to_owned(),
            dir,
            manifest,
            nodes,
            owned: None,
        })
    }

    /// The cluster `name`; if none is named, the only detached one, or else the only
    /// one there is.
    ///
    /// # Errors
    /// As [`Self::open`], and [`Error::WhichCluster`] if several could be meant.
    pub fn find(runtime: &Runtime, name: Option<&str>, cancel: Option<&Cancel>) -> Result<Self> {
        if let Some(name) = name {
            return Self::open(runtime, name, cancel);
        }
        let detached = runtime.detached_names();
        let known = if detached.is_empty() {
            runtime.names()
        } else {
            detached
        };
        match &known[..] {
            [only] => Self::open(runtime, only, cancel),
            [] => Err(Error::NoCluster),
            _ => Err(Error::WhichCluster { known }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who ends it.
    pub fn mode(&self) -> Mode {
        self.manifest.mode
    }

    /// What runs its guests.
    pub fn accel(&self) -> Accel {
        self.manifest.accel
    }

    /// When it was booted, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.manifest.created
    }

    /// The process that booted it, which may have ended.
    pub fn owner(&self) -> Option<ProcessId> {
        self.manifest.owner
    }

    /// Its nodes, in the order of the cluster file; that is the order of NIC numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node called `name`.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`].
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name() == name);
        found.ok_or_else(|| Error::NoSuchNode {
            cluster: self.name.clone(),
            name: name.to_owned(),
            known: self
                .nodes
                .iter()
                .map(|node| node.name().to_owned())
                .collect(),
        })
    }

    /// Its device process, which may have ended; `None` without NICs.
    pub fn device(&self) -> Option<ProcessId> {
        ProcessId::load(&self.dir.device_pid())
    }

    /// The device process's statistics.
    ///
    /// # Errors
    /// [`Error::Failed`] if it does not answer.
    pub fn device_stats(&self) -> Result<serde_json::Value> {
        device::stats(&self.dir.device_control())
    }

    /// What the device process has logged.
    pub fn device_log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.device_log()).unwrap_or_default()).into_owned()
    }

    /// Where the device process logs; `None` without NICs.
    pub fn device_log_path(&self) -> Option<PathBuf> {
        Some(self.dir.device_log()).filter(|path| path.exists())
    }

    /// Ends the cluster, if it was booted attached by this process; otherwise see
    /// [`crate::down`]. Dropping does the same and only logs a failure.
    ///
    /// # Errors
    /// As [`crate::down`].
    pub fn end(mut self) -> Result<()> {
        self.owned.as_mut().map_or(Ok(()), Owned::end)
    }
}

fn read_manifest(name: &str, dir: &ClusterDir) -> Result<Manifest> {
    dir.read_manifest().ok_or_else(|| {
        let message = format!(
            "cluster {name} was left behind incomplete: remove it with \"qnic down {name}\""
        );
        Error::Host(message)
    })
}
