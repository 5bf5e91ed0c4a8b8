//! `qnic trace`: what [`qnic_watch::trace`] writes.

use std::process::ExitCode;

use anyhow::Result;
use qnic_cli::watch::trace::Options;
use qnic_cluster::Cancel;
use qnic_watch::trace::{Settings, Source};

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    let source = match options.socket.is_empty() {
        false => Source::Sockets(options.socket.clone()),
        true => {
            let name = options.cluster.as_deref();
            let cluster = qnic_cli::ui::find(name, Some(&cancel))?;
            Source::Cluster(Box::new(cluster), options.network.clone())
        }
    };
    let settings = Settings {
        time: options.time,
        nodes: options.on.clone(),
        sample: options.sample,
        limit: usize::try_from(options.limit).unwrap_or(usize::MAX),
        output: options.output.clone(),
        json: options.json,
    };
    qnic_watch::trace::run(&source, &settings, &cancel)?;
    Ok(ExitCode::SUCCESS)
}
