//! Programs of the distribution that only some guests have, with their libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::Result;
use crate::guest::contents::needs;
use crate::guest::GuestFile;
use crate::key::files_below;
use crate::root::{PackageSet, Root};

/// Some programs, and the packages that they are in.
pub(crate) struct Programs {
    packages: PackageSet<'static>,
    paths: &'static [&'static str],
    /// Folders below that of libraries with some of theirs.
    folders: &'static [&'static str],
    /// Folders from which a library loads others by itself, and a part of the names that are
    /// wanted.
    looked_up: &'static [(&'static str, &'static str)],
    /// Paths in the guest that become links to a program.
    links: &'static [(&'static str, &'static str)],
}

/// What makes and checks ext4. Busybox makes file systems too, but checks none.
pub(crate) const EXT4: Programs = Programs {
    packages: PackageSet {
        kind: "ext4",
        label: "the programs of ext4",
        suite: STABLE,
        names: "e2fsprogs",
        keep: &|_| true,
        skip: &[],
    },
    paths: &["usr/sbin/mke2fs", "usr/sbin/e2fsck"],
    folders: &[],
    looked_up: &[],
    links: &[],
};

/// What writes to block devices and compares what it reads.
pub(crate) const FIO: Programs = Programs {
    packages: PackageSet {
        kind: "fio",
        label: "fio",
        suite: STABLE,
        names: "fio",
        // Its scripts are not wanted.
        keep: &|package| !package.contains("python"),
        skip: &[],
    },
    paths: &["usr/bin/fio"],
    folders: &["ceph"],
    looked_up: &[],
    links: &[],
};

/// What measures a network between guests: perftest over RDMA, others over sockets; and what makes
/// a device of Soft-RoCE, whose driver the library of verbs looks up.
pub(crate) const NETWORK: Programs = Programs {
    packages: PackageSet {
        kind: "network",
        label: "programs that measure networks",
        suite: STABLE,
        names: "ibverbs-providers iperf3 iproute2 perftest qperf",
        keep: &|_| true,
        skip: &[],
    },
    paths: &[
        "usr/bin/ib_send_lat",
        "usr/bin/ib_write_bw",
        "usr/bin/ib_write_lat",
        "usr/bin/iperf3",
        "usr/bin/qperf",
        "usr/bin/rdma",
    ],
    folders: &[],
    looked_up: &[
        ("etc/libibverbs.d", "rxe"),
        ("usr/lib/x86_64-linux-gnu/libibverbs", "rxe"),
    ],
    links: &[],
};

/// Programs of libibverbs with the library of Soft-RoCE, by which they reach the NIC; of librdmacm; perftest; and `rdma`,
/// which lists objects.
pub(crate) const VERBS: Programs = Programs {
    packages: PackageSet {
        kind: "verbs",
        label: "programs of libibverbs",
        suite: STABLE,
        names: "ibverbs-providers ibverbs-utils iproute2 perftest rdmacm-utils",
        keep: &|_| true,
        skip: &[],
    },
    paths: &[
        "usr/bin/ib_atomic_bw",
        "usr/bin/ib_atomic_lat",
        "usr/bin/ib_read_bw",
        "usr/bin/ib_read_lat",
        "usr/bin/ib_send_bw",
        "usr/bin/ib_send_lat",
        "usr/bin/ib_write_bw",
        "usr/bin/ib_write_lat",
        "usr/bin/ibv_asyncwatch",
        "usr/bin/ibv_devices",
        "usr/bin/ibv_devinfo",
        "usr/bin/ibv_rc_pingpong",
        "usr/bin/ibv_srq_pingpong",
        "usr/bin/ibv_uc_pingpong",
        "usr/bin/ibv_ud_pingpong",
        "usr/bin/rdma",
        "usr/bin/rping",
        "usr/bin/ucmatose",
    ],
    folders: &[],
    looked_up: NETWORK.looked_up,
    links: &[],
};

/// Beginnings of the names of packages that Open MPI's packages depend on and that no guest uses: for graphics
/// processors, for another `ssh`, for the scripts of packages.
const NOT_FOR_MPI: [&str; 9] = [
    "libamd", "libhsa", "libllvm", "libssl", "libx11", "libz3", "openssh", "openssl", "passwd",
];

/// Open MPI and libfabric, with what starts processes on other guests, and NetPIPE to try them with.
pub(crate) const MPI: Programs = Programs {
    packages: PackageSet {
        kind: "mpi",
        label: "Open MPI",
        suite: STABLE,
        names: "dropbear-bin libfabric-bin netpipe-openmpi openmpi-bin",
        keep: &|package| !NOT_FOR_MPI.iter().any(|begin| package.starts_with(begin)),
        skip: &[],
    },
    paths: &[
        "usr/bin/NPopenmpi",
        "usr/bin/dbclient",
        "usr/bin/dropbearkey",
        "usr/bin/fi_info",
        "usr/bin/fi_pingpong",
        "usr/bin/mpirun.openmpi",
        "usr/bin/ompi_info",
        "usr/bin/prted",
        "usr/bin/prterun",
        "usr/sbin/dropbear",
    ],
    folders: &[],
    looked_up: &[
        ("etc/openmpi", ""),
        ("usr/lib/x86_64-linux-gnu/pmix2/lib/pmix", ".so"),
        ("usr/lib/x86_64-linux-gnu/pmix2/share/pmix", ".txt"),
        ("usr/share/openmpi", "help-"),
        ("usr/share/prte", "help-"),
    ],
    links: &[
        ("usr/bin/mpirun.openmpi", "/usr/bin/mpirun"),
        ("usr/bin/mpirun.openmpi", "/usr/bin/oshrun"),
        ("usr/bin/dbclient", "/usr/bin/ssh"),
    ],
};

/// Programs of UCX, and its transports over libibverbs, which it loads from beside its libraries; and the library of
/// OpenSHMEM, which stands on it. They need the files of [`MPI`] and of [`VERBS`], too.
pub(crate) const UCX: Programs = Programs {
    packages: PackageSet {
        kind: "ucx",
        label: "UCX",
        suite: STABLE,
        names: "libopenmpi40 ucx-utils",
        keep: MPI.packages.keep,
        skip: &[],
    },
    paths: &[
        "usr/bin/ucx_info",
        "usr/bin/ucx_perftest",
        "usr/lib/x86_64-linux-gnu/liboshmem.so.40",
        "usr/lib/x86_64-linux-gnu/ucx/libuct_ib.so.0",
    ],
    folders: &[],
    looked_up: &[],
    links: &[],
};

/// Test programs of MPI libraries and of what stands on them: the HPC Challenge, and ScaLAPACK's for real numbers. They
/// need the files of [`MPI`], too.
pub(crate) const MPI_TESTS: Programs = Programs {
    packages: PackageSet {
        kind: "mpi-tests",
        label: "test programs of MPI",
        suite: STABLE,
        names: "hpcc scalapack-mpi-test",
        keep: MPI.packages.keep,
        skip: &[],
    },
    paths: &[
        "usr/bin/hpcc",
        "usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests/xdinv",
        "usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests/xdlu",
    ],
    folders: &["blas", "lapack"],
    looked_up: &[("usr/share/scalapack", ".dat")],
    links: &[],
};

impl Programs {
    /// The packages with all that they need, unpacked.
    pub(crate) fn root(&self, cx: Context<'_>) -> Result<Root> {
        Root::of_packages(cx, &self.packages, |_| Ok(()))
    }

    /// The programs and the libraries that the loader loads for them, for the `extra` of an image.
    pub(crate) fn files(&self, cx: Context<'_>) -> Result<Vec<GuestFile>> {
        let root = self.root(cx)?;
        let mut paths: BTreeSet<PathBuf> = self.paths.iter().map(PathBuf::from).collect();
        for program in self.paths {
            let libraries = needs(&root, program, self.folders)?;
            paths.extend(libraries.into_iter().map(PathBuf::from));
        }
        for (folder, wanted) in self.looked_up {
            let names = files_below(&root.dir.join(folder), |_| false)?;
            let names = names
                .iter()
                .filter(|name| name.to_string_lossy().contains(wanted));
            paths.extend(names.map(|name| Path::new(folder).join(name)));
        }
        let files = paths.into_iter().map(|path| GuestFile {
            guest_path: Path::new("/").join(&path),
            host_path: root.dir.join(&path),
            mode: 0o755,
            links: self.links_to(&path),
        });
        Ok(files.collect())
    }

    fn links_to(&self, path: &Path) -> Vec<PathBuf> {
        let links = self.links.iter();
        let links = links.filter(|(program, _)| Path::new(program) == path);
        links.map(|(_, link)| link.into()).collect()
    }
}
