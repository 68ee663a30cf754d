//! The forms in which alerts are told: mail, and the bodies that web services take. Text in, text out.

use serde_json::{Value, json};

use super::{Alert, Message, Severity};

/// What a web service takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookForm {
    /// The alert as the API shows it, with `event`.
    #[default]
    Json,
    /// Slack's and Mattermost's incoming webhooks.
    Slack,
    /// Microsoft Teams' workflows: an adaptive card.
    Teams,
    /// ntfy: a text, and headers.
    Ntfy,
}

/// A request to a web service: headers and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRequest {
    /// Headers, without those of HTTP itself.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: String,
}

/// Returns the severity that decides whether a channel takes a message; none of a test, which all take.
#[must_use]
pub fn severity(message: &Message) -> Option<Severity> {
    match message {
        Message::Opened(alert) | Message::Cleared(alert) => Some(alert.severity),
        Message::Test(_) => None,
    }
}

/// Returns one line that says what it is.
#[must_use]
pub fn title(message: &Message, host: &str) -> String {
    match message {
        Message::Opened(alert) => format!("[{}] {host}: {}", alert.severity.as_str(), alert.fact),
        Message::Cleared(alert) => format!("[cleared] {host}: {}", alert.fact),
        Message::Test(_) => format!("[test] {host}: this is how alerts arrive"),
    }
}

/// Returns the whole text.
#[must_use]
pub fn text(message: &Message, host: &str) -> String {
    match message {
        Message::Opened(alert) => format!(
            "{}\n\nWhat it means: {}\nWhat to do: {}\n\n{host}, alert {}: 'sanbox alert list' shows it, 'sanbox alert mute {}' ends reminders.\n",
            alert.fact, alert.effect, alert.next_step, alert.id, alert.id
        ),
        Message::Cleared(alert) => format!(
            "Over: {}\n\n{host}, alert {}, after {} minutes.\n",
            alert.fact,
            alert.id,
            alert
                .cleared
                .unwrap_or(alert.seen)
                .saturating_sub(alert.opened)
                / 60
        ),
        Message::Test(_) => {
            format!("This is a test of the alerts of {host}. Nothing has happened.\n")
        }
    }
}

/// Returns the request that tells a web service of this form.
#[must_use]
pub fn webhook(form: WebhookForm, message: &Message, host: &str) -> WebhookRequest {
    let as_json = |body: Value| WebhookRequest {
        headers: vec![("content-type", "application/json".to_owned())],
        body: body.to_string(),
    };
    let (title, text) = (title(message, host), text(message, host));
    match form {
        WebhookForm::Json => as_json(match message {
            Message::Opened(alert) => with_event("opened", host, Some(alert)),
            Message::Cleared(alert) => with_event("cleared", host, Some(alert)),
            Message::Test(_) => with_event("test", host, None),
        }),
        // https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
        WebhookForm::Slack => {
            as_json(json!({"text": format!("*{}*\n{}", escaped(&title), escaped(&text))}))
        }
        // https://learn.microsoft.com/en-us/microsoftteams/platform/webhooks-and-connectors
        WebhookForm::Teams => as_json(json!({
            "type": "message",
            "attachments": [{
                "contentType": "application/vnd.microsoft.card.adaptive",
                "content": {
                    "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                    "type": "AdaptiveCard",
                    "version": "1.4",
                    "body": [
                        {"type": "TextBlock", "text": title, "weight": "bolder", "wrap": true},
                        {"type": "TextBlock", "text": text, "wrap": true},
                    ],
                },
            }],
        })),
        // https://docs.ntfy.sh/publish
        WebhookForm::Ntfy => WebhookRequest {
            headers: vec![
                ("content-type", "text/plain; charset=utf-8".to_owned()),
                ("title", header(&title)),
                ("priority", priority(message).to_owned()),
                ("tags", "floppy_disk".to_owned()),
            ],
            body: text,
        },
    }
}

fn with_event(event: &str, host: &str, alert: Option<&Alert>) -> Value {
    let alert = alert.and_then(|alert| serde_json::to_value(alert).ok());
    json!({"event": event, "host": host, "alert": alert})
}

/// Slack's own markup: three characters.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// What may stand in a header: names of pools come from people.
fn header(text: &str) -> String {
    let plain = |letter: char| match letter {
        ' '..='~' => letter,
        _ => '?',
    };
    text.chars().map(plain).take(200).collect()
}

fn priority(message: &Message) -> &'static str {
    match severity(message) {
        Some(Severity::Critical) => "5",
        Some(Severity::Warning) => "4",
        _ => "3",
    }
}

/// RFC 5424, 6.2.1: facility 3 is system daemons.
pub(super) const SYSLOG_FACILITY: u8 = 3;

/// RFC 5424, 6.2.1: severities 2, 4, 5 and 6 are critical, warning, notice and informational.
pub(super) fn syslog_level(message: &Message) -> u8 {
    match (message, severity(message)) {
        (Message::Cleared(_), _) | (_, Some(Severity::Info) | None) => 5,
        (_, Some(Severity::Critical)) => 2,
        (_, Some(Severity::Warning)) => 4,
    }
}

/// Returns a message of syslog (RFC 5424, 6), from facility daemon.
#[must_use]
pub fn syslog(message: &Message, host: &str) -> String {
    let host: String = host
        .chars()
        .filter(char::is_ascii_graphic)
        .take(255)
        .collect();
    let host = if host.is_empty() { "-" } else { &host };
    let line = text(message, host);
    let words: Vec<&str> = line.split_whitespace().collect();
    format!(
        "<{}>1 - {host} sanbox - alert - {}",
        SYSLOG_FACILITY * 8 + syslog_level(message),
        words.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::AlertState;
    use super::*;

    fn alert() -> Alert {
        Alert {
            id: 7,
            key: "pool/tank/health".to_owned(),
            severity: Severity::Critical,
            subject: "tank".to_owned(),
            fact: "Pool 'tank' is <FAULTED>\r\nBcc: eve@example.com".to_owned(),
            effect: "No data.".to_owned(),
            next_step: "Look.".to_owned(),
            state: AlertState::Open,
            by: None,
            muted_until: None,
            opened: 0,
            seen: 0,
            cleared: None,
        }
    }

    #[test]
    fn every_form_says_it_and_none_can_be_broken_out_of() {
        let message = Message::Opened(alert());
        for form in [WebhookForm::Json, WebhookForm::Slack, WebhookForm::Teams] {
            let request = webhook(form, &message, "box");
            let body: Value = serde_json::from_str(&request.body).expect("JSON");
            assert!(body.to_string().contains("FAULTED"), "{form:?}");
        }
        let slack = webhook(WebhookForm::Slack, &message, "box").body;
        assert!(slack.contains("&lt;FAULTED&gt;"), "{slack}");
        let ntfy = webhook(WebhookForm::Ntfy, &message, "box");
        assert!(
            ntfy.headers
                .iter()
                .all(|(_, value)| !value.contains(['\r', '\n']))
        );
        assert!(ntfy.headers.contains(&("priority", "5".to_owned())));
        let line = syslog(&message, "box");
        assert!(
            line.starts_with("<26>1 - box sanbox - alert - Pool 'tank'"),
            "{line}"
        );
        assert!(!line.contains('\n'));
        let over = Message::Cleared(alert());
        assert!(title(&over, "box").starts_with("[cleared] box"));
        assert!(syslog(&Message::Test(None), "").starts_with("<29>1 - - sanbox"));
    }
}
