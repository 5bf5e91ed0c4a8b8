//! The steps of others' pipelines, run here as their systems would (X19): those of the
//! workflow that `qnic new` writes, with the action of this checkout, and those of the
//! template for GitLab. What a system does itself (fetching, caches, uploads) is left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use qnic_trials::create_project;
use yaml_rust2::{Yaml, YamlLoader};

/// A clean clone of a new project, and the checkout in it.
struct Clone {
    dir: PathBuf,
    /// Where cargo builds it: kept from run to run.
    target: PathBuf,
}

/// Variables of a step's environment.
type Variables = BTreeMap<String, String>;

/// A new project's pipelines pass in a clean clone of it, and give report and artifacts.
pub(super) fn steps_of_ci() -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let scratch = tempfile::tempdir().context("make a directory")?;
    let project = scratch.path().join("ci-project");
    create_project(&project, &checkout)?;
    let git = |arguments: &[&str], dir: &Path| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@t"]);
        let status = git.args(arguments).current_dir(dir).status();
        let status = status.context("start git")?;
        ensure!(status.success(), "git {arguments:?}: {status}");
        Ok(())
    };
    git(&["init", "--quiet"], &project)?;
    git(&["add", "."], &project)?;
    git(&["commit", "--quiet", "--message", "Begin"], &project)?;
    let dir = scratch.path().join("clone");
    git(&["clone", "--quiet", "ci-project", "clone"], scratch.path())?;
    // What the pipelines fetch.
    std::os::unix::fs::symlink(&checkout, dir.join(".qnic")).context("link the checkout")?;
    let clone = Clone {
        dir,
        target: checkout.join("target/ci-project"),
    };
    clone.github().context("GitHub's steps")?;
    fs::remove_dir_all(clone.dir.join("qnic-out")).context("remove the artifacts")?;
    clone.gitlab().context("GitLab's steps")
}

impl Clone {
    fn github(&self) -> Result<()> {
        let workflow = load(&self.dir.join(".github/workflows/test.yml"))?;
        let steps = &workflow["jobs"]["guests"]["steps"];
        let mut ran = 0;
        for step in steps.as_vec().context("no steps")? {
            match (text(&step["run"]), text(&step["uses"])) {
                (Some(run), _) => self.run(&run, &Variables::new())?,
                (None, Some(uses)) if uses.starts_with("./") => {
                    self.action(&self.dir.join(&uses), &step["with"])?;
                    ran += 1;
                }
                // The system's own.
                (None, Some(uses)) if uses.starts_with("actions/") => {}
                step => bail!("what is the step {step:?}?"),
            }
        }
        ensure!(ran == 1, "{ran} steps use the action");
        self.check()
    }

    /// The steps of the composite action in `dir`.
    fn action(&self, dir: &Path, with: &Yaml) -> Result<()> {
        let action = load(&dir.join("action.yml"))?;
        let mut known = Variables::new();
        known.insert("github.action_path".into(), dir.display().to_string());
        // A variable of the repository, which names a mirror where the runner knows none.
        let mirror = std::env::var("QNIC_DEBIAN_MIRROR").unwrap_or_default();
        known.insert("vars.QNIC_DEBIAN_MIRROR".into(), mirror);
        for (name, input) in pairs(&action["inputs"]) {
            let given = text(&with[name.as_str()]).or_else(|| text(&input["default"]));
            let given = given.with_context(|| format!("no input {name}"))?;
            let given = expand(&given, &known)?;
            known.insert(format!("inputs.{name}"), given);
        }
        for (name, _) in pairs(with) {
            let key = format!("inputs.{name}");
            ensure!(known.contains_key(&key), "the action has no input {name}");
        }
        let steps = action["runs"]["steps"].as_vec().context("no steps")?;
        for run in steps.iter().filter(|step| !step["run"].is_badvalue()) {
            let mut variables = Variables::new();
            for (name, value) in pairs(&run["env"]) {
                let value = text(value).with_context(|| format!("no value of {name}"))?;
                variables.insert(name, expand(&value, &known)?);
            }
            let script = text(&run["run"]).context("no script")?;
            self.run(&expand(&script, &known)?, &variables)?;
        }
        Ok(())
    }

    /// The job of GitLab's template, of which a user sets `QNIC_RUN`.
    fn gitlab(&self) -> Result<()> {
        let template = load(&self.dir.join(".qnic/ci/gitlab.yml"))?;
        let job = &template[".qnic"];
        let mut variables = Variables::new();
        let own = ["QNIC_CACHE", "CARGO_HOME", "CARGO_TARGET_DIR"];
        for (name, value) in pairs(&job["variables"]) {
            // The caches of this machine stand in for those that the system restores.
            if !own.contains(&name.as_str()) {
                variables.insert(name, text(value).unwrap_or_default());
            }
        }
        let run = "exec cluster.toml -- sh -c 'test $QNIC_NODES = 2'";
        variables.insert("QNIC_RUN".into(), run.into());
        for part in ["before_script", "script"] {
            for line in job[part].as_vec().context("no script")? {
                self.run(&text(line).context("no line")?, &variables)?;
            }
        }
        let report = text(&job["artifacts"]["reports"]["junit"]);
        ensure!(
            report.as_deref() == Some("qnic-out/report.xml"),
            "{report:?}"
        );
        self.check()
    }

    fn run(&self, script: &str, variables: &Variables) -> Result<()> {
        let mut shell = Command::new("bash");
        shell.args(["-e", "-c", script]).current_dir(&self.dir);
        shell.envs(variables);
        if script.starts_with("cargo build") {
            shell.env("CARGO_TARGET_DIR", &self.target);
        }
        let status = shell.status().context("start bash")?;
        ensure!(status.success(), "{script}: {status}");
        // Where the workflow looks for it.
        let link = self.dir.join("target");
        if self.target.exists() && !link.exists() {
            std::os::unix::fs::symlink(&self.target, link).context("link the build")?;
        }
        Ok(())
    }

    /// Checks that report and artifacts are there.
    fn check(&self) -> Result<()> {
        let out = self.dir.join("qnic-out");
        let report = fs::read_to_string(out.join("report.xml")).context("no report")?;
        ensure!(report.contains("failures=\"0\""), "{report}");
        ensure!(report.contains("classname=\"ci-project.n1\""), "{report}");
        for file in [
            "result.json",
            "n0/console.log",
            "n1/stdout.log",
            "links.json",
        ] {
            ensure!(
                out.join("artifacts").join(file).exists(),
                "{file} is missing"
            );
        }
        Ok(())
    }
}

fn load(file: &Path) -> Result<Yaml> {
    let shown = file.display();
    let content = fs::read_to_string(file).with_context(|| format!("read {shown}"))?;
    let documents = YamlLoader::load_from_str(&content);
    let documents = documents.with_context(|| format!("parse {shown}"))?;
    documents.into_iter().next().context("an empty file")
}

fn text(value: &Yaml) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn pairs(value: &Yaml) -> Vec<(String, &Yaml)> {
    let pairs = value.as_hash().into_iter().flatten();
    pairs
        .filter_map(|(name, value)| Some((text(name)?, value)))
        .collect()
}

/// `script` with the value of each `${{ name }}`.
fn expand(script: &str, known: &Variables) -> Result<String> {
    let mut parts = script.split("${{");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").context("an open expression")?;
        let value = known.get(name.trim());
        expanded += value.with_context(|| format!("what is {}?", name.trim()))?;
        expanded += rest;
    }
    Ok(expanded)
}
