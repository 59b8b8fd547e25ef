"""Where a method is replaced on later versions of MuJoCo."""


class SawyerMocapBase:
    def reset_mocap_welds(self):
        raise AssertionError
