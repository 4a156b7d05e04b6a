//! Projects. A project is the only mark that a reserved address can carry from its creation on.
//!
//! An address belongs to the project in its create request. Droplets and domains belong to the default project.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::{CloudChange, Ledger};
use super::super::{Answer, Call};
use super::account::{DEFAULT_PROJECT_ID, DigitalOcean, Project};
use super::answers::{Handled, error, moment, no_content, not_found, unprocessable};

impl Project {
    fn json(&self) -> Value {
        json!({
            "id": self.id,
            "owner_uuid": "00000000-0000-4000-8000-0000000000aa",
            "owner_id": 258_992,
            "name": self.name,
            "description": self.description,
            "purpose": self.purpose,
            "environment": self.environment,
            "is_default": self.id == DEFAULT_PROJECT_ID,
            "created_at": moment(self.created_at),
            "updated_at": moment(self.created_at),
        })
    }
}

/// A resource of a project.
struct Resource {
    urn: String,
    path: String,
    assigned_at: Duration,
}

impl DigitalOcean {
    pub(super) fn list_projects(&self, call: &Call) -> Answer {
        self.page(call, "projects", self.projects.values().collect(), Project::json)
    }

    pub(super) fn create_project(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Handled {
        let text = |field: &str| call.body[field].as_str().unwrap_or_default().to_owned();
        let (name, purpose) = (text("name"), text("purpose"));
        if name.is_empty() || purpose.is_empty() {
            return Err(unprocessable("name and purpose are required"));
        }
        if self.projects.values().any(|project| project.name == name) {
            return Err(error(409, "conflict", "name is already in use"));
        }
        let project = Project {
            id: self.next_project_id(),
            name,
            description: text("description"),
            purpose,
            environment: text("environment"),
            created_at: now,
        };
        ledger.did(now, CloudChange::Other(format!("created project {}", project.name)));
        let answer = Answer::json(201, json!({ "project": project.json() }));
        self.projects.insert(project.id.clone(), project);
        Ok(answer)
    }

    /// IDs only increase, so the ID of a deleted project is never reused.
    fn next_project_id(&mut self) -> String {
        self.project_count += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.project_count)
    }

    pub(super) fn get_project(&self, id: &str) -> Handled {
        let project = self.projects.get(id).ok_or_else(not_found)?;
        Ok(Answer::json(200, json!({ "project": project.json() })))
    }

    pub(super) fn delete_project(&mut self, id: &str, now: Duration, ledger: &mut Ledger) -> Handled {
        let project = self.projects.get(id).ok_or_else(not_found)?;
        if id == DEFAULT_PROJECT_ID {
            return Err(error(412, "precondition_failed", "cannot delete the default project"));
        }
        if !self.resources(id).is_empty() {
            let message = "cannot delete a project with resources. move or remove the resources first";
            return Err(error(412, "precondition_failed", message));
        }
        ledger.did(now, CloudChange::Other(format!("deleted project {}", project.name)));
        self.projects.remove(id);
        Ok(no_content())
    }

    pub(super) fn list_resources(&self, id: &str, call: &Call) -> Handled {
        // The API accepts `default` instead of a project ID in every path.
        let id = if id == "default" { DEFAULT_PROJECT_ID } else { id };
        let project = self.projects.get(id).ok_or_else(not_found)?;
        Ok(self.page(call, "resources", self.resources(&project.id), |resource| {
            json!({
                "urn": resource.urn,
                "assigned_at": moment(resource.assigned_at),
                "links": { "self": format!("{}/v2/{}", self.api_url, resource.path) },
                "status": "ok",
            })
        }))
    }

    /// Returns the resources of a project. Like the vendor, it uses the old name for addresses (`floatingip`).
    fn resources(&self, project: &str) -> Vec<Resource> {
        let mut resources = Vec::new();
        if project == DEFAULT_PROJECT_ID {
            resources.extend(self.droplets.keys().map(|id| Resource {
                urn: format!("do:droplet:{id}"),
                path: format!("droplets/{id}"),
                assigned_at: Duration::ZERO,
            }));
            resources.extend(self.domains.keys().map(|name| Resource {
                urn: format!("do:domain:{name}"),
                path: format!("domains/{name}"),
                assigned_at: Duration::ZERO,
            }));
        }
        let addresses = self.addresses.iter().filter(|(_, address)| address.project == project);
        resources.extend(addresses.map(|(ip, address)| Resource {
            urn: format!("do:floatingip:{ip}"),
            path: format!("floating_ips/{ip}"),
            assigned_at: address.created_at,
        }));
        resources
    }
}
