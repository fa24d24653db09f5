"""Kafka cluster of three brokers with TLS, authentication and ACLs, on one host."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import javaproperties

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.certificates import create_certificates, write_private
from flafka.agent.services.cluster import HOST
from flafka.agent.services.kafka import HEAP_MB, NODES, BrokerListeners, KafkaCluster, without_client_log
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.running import until
from flafka.plugins.kafka.rights import TRANSACTIONAL_IDS

USER, ADMINISTRATOR = "flafka", "admin"
"""User of an agent, and the user with all rights."""
BROKER = "broker"
"""Common name of the brokers' certificate."""
MECHANISM = "SCRAM-SHA-512"
LOGIN_SECONDS = 60.0
"""Time for a new user to become known to all brokers."""

# Brokers authenticate to each other and to the controllers by their certificate. Clients have their own listener.
LISTENERS = """\
listeners=CLIENT://{host}:{client_port},INTERNAL://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=CLIENT://localhost:{client_port},INTERNAL://{host}:{port}
inter.broker.listener.name=INTERNAL
listener.security.protocol.map=CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL

ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.internal.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
sasl.enabled.mechanisms=SCRAM-SHA-512,GSSAPI
sasl.kerberos.service.name=kafka
listener.name.client.scram-sha-512.sasl.jaas.config={scram}
listener.name.client.gssapi.sasl.jaas.config={kerberos}

authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:CN={broker};User:{administrator}
"""
MODULES = "org.apache.kafka.common.security"
# The keytab alone accepts tickets: a broker needs no ticket of its own, and starts without the KDC.
KERBEROS = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true isInitiator=false "
    'keyTab="{keytab}" principal="kafka/localhost@{realm}";'
)
RIGHTS = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS"),
    "GROUP": ("READ",),
    "TRANSACTIONAL_ID": ("WRITE",),
}
"""Rights of docs/production.md for the user of an agent, by kind of resource; Read and Write include Describe."""


class SecureKafkaCluster(KafkaCluster):
    """Three brokers that admit clients over TLS, with passwords (SCRAM) or Kerberos, and check ACLs.

    A user `alice` has a password, or is the principal alice@FLAFKA.TEST. The user has an agent's rights on topics and
    consumer groups whose names begin with `alice`, and on transactional ids that begin with `flafka.`. The user
    `admin` has all rights.
    """

    def __init__(self, directory: Path | str, kdc: Kdc, *, heap_mb: int = HEAP_MB, fixed_ports: bool = True) -> None:
        """`kdc` was started before, as its keytab has the brokers' key. `heap_mb` is the heap of each broker."""
        super().__init__(directory, heap_mb=heap_mb, fixed_ports=fixed_ports)
        self.kdc = kdc
        self.authority = self.directory / "clients" / "ca.pem"
        """Certificate of the authority that clients have to trust."""
        self._certificate = self.directory / "conf" / "server.pem"

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers of clients, as `localhost:port,…`. Raises ServiceError before the first start."""
        ports = self.ports
        return ",".join(f"localhost:{ports[f'broker-{node}']}" for node in NODES)  # as in the service's principal

    def _endpoints(self) -> dict[int, BrokerListeners]:
        ports = self.ports
        return {n: BrokerListeners(HOST, ports[f"internal-{n}"], ports[f"controller-{n}"]) for n in NODES}

    def default_ports(self) -> Mapping[str, int]:
        """Return 19092 to 19094 for clients, 19095 to 19097 for controllers, 19098 to 19100 for brokers."""
        return {**super().default_ports(), **{f"internal-{node}": 19097 + node for node in NODES}}

    def properties(self, user: str) -> Path:
        """Return the path of a user's `client.properties`, for `--command-config`."""
        return self.authority.with_name(f"{user}.properties")

    def password_file(self, user: str) -> Path:
        """Return the path of the file with a user's password."""
        return self.authority.with_name(f"{user}.password")

    def client_options(self, user: str) -> dict[str, str]:
        """Return the options of an agent's Kafka client that authenticates as this user, without their prefix."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": f"${{file:{self.password_file(user)}}}",
            "ssl.ca.location": str(self.authority),
        }

    def start(self, timeout: float = 120) -> Self:
        """Start the brokers as `Cluster.start` does, and create the users `flafka` and `admin`."""
        super().start(timeout)
        for user in (ADMINISTRATOR, USER):
            self.add_user(user)
        return self

    def prepare(self, java: Java, lib: Path) -> None:
        """Write certificates and the configuration of each broker, and format new storage. Raises ServiceError."""
        for file in (self.authority, self._certificate):
            file.parent.mkdir(parents=True, exist_ok=True)
        create_certificates(self.authority, self._certificate, BROKER)
        super().prepare(java, lib)

    def _listener_properties(self, node: int, listeners: BrokerListeners) -> str:
        values = {
            "client_port": str(self.ports[f"broker-{node}"]),
            "keystore": str(self._certificate),
            "truststore": str(self.authority),
            "scram": f"{MODULES}.scram.ScramLoginModule required;",
            "kerberos": KERBEROS.format(keytab=self.kdc.service_keytab, realm=REALM),
        }
        escaped = {name: javaproperties.escape(value) for name, value in values.items()}
        return LISTENERS.format(**escaped, **listeners._asdict(), broker=BROKER, administrator=ADMINISTRATOR)

    def _java_options(self) -> list[str]:
        return [
            f"-Djava.security.krb5.conf={self.kdc.krb5_conf}",
            # A replay cache would refuse two clients within the same microsecond.
            "-Dsun.security.krb5.rcache=none",
        ]

    def _admin_login(self) -> dict[str, Any]:
        certificate = str(self._certificate)
        return {
            "security_protocol": "SSL",
            "ssl_cafile": str(self.authority),
            "ssl_certfile": certificate,
            "ssl_keyfile": certificate,
        }

    def add_user(self, user: str) -> Path:
        """Create a user with a random password and an agent's rights, and return its `client.properties`.

        Idempotent: an existing user keeps the password. Blocks until all brokers admit the user. Raises ServiceError.
        """
        from kafka import KafkaAdminClient
        from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
        from kafka.errors import KafkaError

        password = self.prepare_user(user)
        credential = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password)
        servers = [f"{host}:{port}" for host, port, _ in self._endpoints().values()]
        try:
            with without_client_log(), KafkaAdminClient(bootstrap_servers=servers, **self._admin_login()) as admin:
                rights = [] if user == ADMINISTRATOR else _rights(user)
                refused = admin.create_acls(rights)["failed"] if rights else []
                refused += [text for text in admin.alter_user_scram_credentials([credential]).values() if text]
        except KafkaError as e:
            raise ServiceError(f"the brokers do not create the user {user}: {e}") from e
        if refused:
            raise ServiceError(f"the brokers do not create the user {user}: {refused[0]}")
        for server in self.bootstrap_servers.split(","):
            until(partial(self._admits, user, password, server), f"{server} to know {user}", LOGIN_SECONDS)
        return self.properties(user)

    def prepare_user(self, user: str) -> str:
        """Write the files of a user without asking the brokers, and return the password, a new one at first.

        The `client.properties` have the names of Java's client, which all tools read.
        """
        file = self.password_file(user)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_private(file, secrets.token_urlsafe(24))
        password = file.read_text()
        login = f'{MODULES}.scram.ScramLoginModule required username="{user}" password="{password}";'
        properties = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": login,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }
        write_private(self.properties(user), javaproperties.dumps(properties, timestamp=False))
        return password

    def _admits(self, user: str, password: str, server: str) -> bool:
        """Return True if a broker admits a user by password."""
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        login = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority),
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
        try:
            with without_client_log():
                KafkaAdminClient(bootstrap_servers=server, bootstrap_timeout_ms=2000, **login).close()
        except KafkaError:
            return False
        return True


def _rights(user: str) -> list[Any]:
    """Return the ACLs of a user of this name."""
    from kafka.admin import (
        ACL,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePattern,
        ResourceType,
    )

    allow, prefixed = ACLPermissionType.ALLOW, ACLResourcePatternType.PREFIXED
    return [
        ACL(
            f"User:{user}",
            "*",
            ACLOperation[operation],
            allow,
            ResourcePattern(ResourceType[kind], TRANSACTIONAL_IDS if kind == "TRANSACTIONAL_ID" else user, prefixed),
        )
        for kind, operations in RIGHTS.items()
        for operation in operations
    ]
