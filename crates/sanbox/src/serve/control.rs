//! The appliance's end of the control socket: runs commands for clients.

use std::sync::Arc;

use manage::control::Frame;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::log;
use crate::appliance::Appliance;
use crate::cli::out::{Out, Stream};
use crate::cli::{Caller, Session};

/// Output on its way to a client.
const CHUNKS_MAX: usize = 16;

/// Accepts clients until the task is ended.
pub(crate) async fn serve(listener: UnixListener, appliance: Arc<Appliance>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(client(stream, appliance.clone()));
            }
            Err(error) => {
                log(format!("a command could not be accepted: {error}"));
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

async fn client(stream: UnixStream, appliance: Arc<Appliance>) {
    let (mut reader, mut writer) = stream.into_split();
    let Ok(Some(Frame::Request(request))) = Frame::receive(&mut reader).await else {
        return;
    };
    let (sender, mut chunks) = mpsc::channel(CHUNKS_MAX);
    let caller = Caller {
        directory: request.directory,
        environment: request.environment,
        uid: request.uid,
    };
    let out = Out::channel(sender);
    let session = Session::new(appliance, out, caller, &request.tool, &request.arguments);
    let command = async move {
        // The session, and with it the sender of output, goes when the command ends.
        crate::cli::run(session, &request.tool, &request.arguments).await
    };
    let command = tokio::spawn(command);
    let abort = command.abort_handle();
    let relay = async {
        while let Some((stream, bytes)) = chunks.recv().await {
            let frame = match stream {
                Stream::Out => Frame::Out(bytes),
                Stream::Err => Frame::Err(bytes),
            };
            frame.send(&mut writer).await?;
        }
        // A command that panicked is reported as an error; the daemon goes on.
        let code = command.await.map_or(1, |exit| exit.0);
        Frame::Exit(code).send(&mut writer).await
    };
    tokio::select! {
        _ = relay => {}
        // The client closed the connection: interrupted, or gone.
        _ = Frame::receive(&mut reader) => abort.abort(),
    }
}
