//! `qnic top`: what [`qnic_watch::top`] shows.

use std::process::ExitCode;

use anyhow::Result;
use qnic_cli::watch::top::Options;
use qnic_cluster::Cancel;
use qnic_watch::top::{Settings, Source};

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    let source = match &options.socket {
        Some(socket) => Source::Socket(socket.clone()),
        None => {
            let name = options.cluster.as_deref();
            Source::Cluster(Box::new(qnic_cli::ui::find(name, Some(&cancel))?))
        }
    };
    let settings = Settings {
        interval: options.interval,
        once: options.once,
        json: options.json,
    };
    qnic_watch::top::run(&source, settings, &cancel)?;
    Ok(ExitCode::SUCCESS)
}
