def register_third_party_plugins():
    """There are none."""
