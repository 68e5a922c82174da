"""The texts of the files that `torso federation init` writes: config.toml, README.md and certificates.sh."""

CONFIG = """\
# The run: `torso federation run DIR` sends it to the clients that are there. Every key: docs/reference.md
[method]
name = "fedbabu"       # torso methods

[model]
body = "mlp"           # torso models

[train]
rounds = 20
local_epochs = 5
batch_size = 10
lr = 0.1
fraction = 1.0         # share of the connected clients that take part in a round
min_clients = 2        # this many must answer in a round, or it is repeated

[run.flower]
clients = 2            # to wait for before the first round; later ones get a model, but do not train
wait = 600.0           # seconds to wait for them, and for clients that have left
deadline = 600.0       # seconds that a client has in a round
"""

README = """\
# A federation

The server is at {address}. The clients connect to it; nothing ever connects to a client.

Copy `client/` to every client machine. `server/` never leaves the server: whoever can read `server/secret` may control
it. The certificates in here are for a trial and expire after 30 days; `certificates.sh` makes others, signed by your
own authority.

## On the server

    torso federation serve .          # runs until Ctrl-C; listens on {listen}, port {port}

In another terminal, for every client, once:

    torso federation admit . clinic-3.pub

It prints the fingerprint of the key. Compare it by telephone with the one that the client's user sees.

Then, as often as you like:

    torso federation status .         # who is there, with how many samples
    torso federation run .            # trains as config.toml says, and writes a run folder
    torso federation revoke . clinic-3

## On a client

Copy the folder `client` to the machine, and there, once:

    torso federation key client --name clinic-3

This writes `client/keys/clinic-3`, which never leaves the machine, and `client/keys/clinic-3.pub`, which you send to
the server's operator. When the key is admitted:

    torso federation join client --name clinic-3 --data PATH     # a folder of images, .csv or .npz; until Ctrl-C

When a run is over:

    torso federation models client                              # the models that this machine has
    torso export client/clinic-3 --out clinic-3-model            # the newest, and how to use it
"""

CERTIFICATES = """\
#!/bin/sh
# Makes certificates signed by your own authority, which replace those for a trial. Run it in this folder, on the
# server; stop the server before, start it again afterwards, and give every client the new client/ca.crt.
#
# If your organisation has an authority already, get three files from it: client/ca.crt (the authority's certificate),
# server/server.crt (one for this server, with the names below) and server/server.key. All are PEM.
set -eu
cd "$(dirname "$0")"
umask 077

NAMES="{names}"                # under which clients and this machine find the server; 127.0.0.1 is needed
DAYS=365                       # how long the server's certificate is good for (those for a trial: {days})
AUTHORITY="Torso federation"   # the name of the authority

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The authority: one key, kept in server/ca.key, and its certificate, which the clients get.
openssl ecparam -name secp384r1 -genkey -noout -out "$work/ca.key"
openssl req -x509 -new -key "$work/ca.key" -sha384 -days 3650 -subj "/CN=$AUTHORITY" -out "$work/ca.crt" \\
  -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign"

# The server: a key, a request, and the authority's signature under it.
openssl ecparam -name secp384r1 -genkey -noout -out "$work/server.key"
openssl req -new -key "$work/server.key" -subj "/CN=Torso server" -out "$work/server.csr"
cat > "$work/extensions" <<END
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=$NAMES
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
END
openssl x509 -req -in "$work/server.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -sha384 \\
  -days "$DAYS" -extfile "$work/extensions" -out "$work/server.crt"

mv "$work/ca.key" server/ca.key
mv "$work/server.key" server/server.key
mv "$work/server.crt" server/server.crt
mv "$work/ca.crt" client/ca.crt
chmod 644 client/ca.crt server/server.crt
echo "Done. Start the server again, and give client/ca.crt to every client."
"""
