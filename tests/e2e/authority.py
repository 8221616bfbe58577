"""Authorities that sign certificates by the openssl program, and what a service and a client need to use them."""
import ssl
import subprocess


class Authority:
    KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        self.file = folder / "authority.pem"
        self.openssl("req", "-x509", *self.KEY, "-keyout", folder / "authority.key", "-out", self.file, "-subj", f"/CN={folder.name}", "-days", 60)

    def openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    def certificate(self, name, names="IP:127.0.0.1", days=30):
        """Files of a certificate for these names, and of its key."""
        key, asked, signed = (self.folder / (name + ending) for ending in (".key", ".csr", ".pem"))
        self.openssl("req", *self.KEY, "-keyout", key, "-out", asked, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}")
        self.openssl("x509", "-req", "-in", asked, "-CA", self.file, "-CAkey", self.folder / "authority.key", "-copy_extensions", "copyall", "-days", days, "-out", signed)
        return signed, key


class Tls:
    """Of a cluster that trusts one authority and shows one certificate.  mutual: clients must show one too."""

    def __init__(self, authority, certificate, key, mutual=True):
        self.ca, self.certificate, self.key = authority.file, certificate, key
        self.flags = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", authority.file]
        self.client_flags = list(self.flags)
        if mutual:
            self.flags += ["--tls-client-ca", authority.file]
        self.context = client_context(authority, certificate, key)


def client_context(authority, certificate=None, key=None):
    context = ssl.create_default_context(cafile=authority.file)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context
