"""Certificates for TLS on loopback, made on the spot."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates:
    """An authority, and a certificate of ours for both ends, as PEM files."""

    def __init__(self, folder: Path, name: str) -> None:
        authority = ec.generate_private_key(ec.SECP256R1())
        ours = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.authority = folder / f"{name}-authority.pem"
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        signed = self._signed(issuer, authority, authority, authority=True)
        self.authority.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        signed = self._signed(issuer, ours, authority, authority=False)
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        kind = serialization.PrivateFormat.PKCS8
        self.key.write_bytes(
            ours.private_bytes(serialization.Encoding.PEM, kind, encryption_algorithm=serialization.NoEncryption())
        )

    @staticmethod
    def _signed(issuer: x509.Name, key: Any, by: Any, *, authority: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        subject = issuer if authority else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
        identifier = x509.SubjectKeyIdentifier.from_public_key(by.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=authority,
            crl_sign=authority,
            encipher_only=False,
            decipher_only=False,
        )
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(by, hashes.SHA256())
        )
